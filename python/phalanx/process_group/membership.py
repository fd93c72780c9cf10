"""A rank's membership of a process group: how it is joined and left, how calls run, what torch asks about.

BACKEND-2 (call-order): every rank's collectives run in the order of their calls, synchronous and asynchronous ones
alike. Messages go beside them.
BACKEND-3 (own-thread): a synchronous collective runs on the caller's thread, unless others have to run before it. An
asynchronous one runs on the group's thread. Neither holds the interpreter lock.
BACKEND-4 (no-inheritance): a forked child, such as a DataLoader's worker, has no connection of its parent's groups. So
the others notice at once when the parent dies, even if its children live on.
"""

from __future__ import annotations

import atexit
import math
import os
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Work

from .._native import ProcessGroup
from .._native import Work as NativeWork
from ..rank import contract
from ..rank.reporting import has_failed
from ..rank.watchdog import activity_path, waits_natively
from . import NAME
from .arguments import timeout_seconds
from .monitored_barrier import MonitoredBarrier
from .plan import Plan
from .work import DONE, CoalescedWork, CollectiveWork, as_torch_keeps_it


class Membership:
    """What a group is, whatever it computes."""

    supports_splitting = supports_coalescing = supports_shrinking = False
    supports_time_estimate = _supports_time_estimate = False

    def supports_tensor_alloc(self, device: Any) -> bool:
        """FSDP asks where it is to allocate from the group. DDP asks C++ backends alone."""
        return False

    def _open(self, options: Any) -> None:
        store: Any = options.store
        self._store = store
        self._group_rank: int = options.group_rank
        self._group_size: int = options.group_size
        self._name = str(options.group_id)
        self._timeout: timedelta = options.timeout
        self._global_ranks = list(options.global_ranks_in_group) or list(range(self._group_size))
        self._sequence = 0
        self._monitored_barrier = MonitoredBarrier(store, self._group_rank, self._global_ranks)
        self._coalesced: list[Work] | None = None

        def get(key: str, seconds: float) -> bytes:
            store.wait([key], timedelta(seconds=min(seconds, 1e9)))
            return bytes(store.get(key))

        self._native = ProcessGroup(
            rank=self._group_rank,
            ranks=self._global_ranks,
            name=f"phalanx/{self._name}",
            get=get,
            set=store.set,
            timeout=self._timeout.total_seconds(),
            interface=os.environ.get(contract.ENV_GLOO_INTERFACE),
            towards=os.environ.get(contract.ENV_RANK0_ADDRESS) or os.environ.get(contract.ENV_MASTER_ADDR),
            cut_timeout=_cut_timeout(),
            activity=activity_path(self._name),
        )
        _close_at_exit(self._native)

    @waits_natively
    def _start(self, plan: Plan, result: Sequence[Any], opts: Any, timeout: timedelta | None = None) -> Work:
        seconds = timeout_seconds(opts, timeout)
        self._sequence += 1
        if getattr(opts, "asyncOp", True):
            native = self._native.submit(plan.calls, seconds, plan.kept)
            work = self._under_way(native, result, plan)
        else:
            self._native.run(plan.calls, seconds, plan.kept)
            finish = plan.finish
            if finish is not None:
                finish()
            work = DONE
        return self._noted(work)

    def _noted(self, work: Work) -> Work:
        """The work, which the end of a coalescing waits for, too."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _under_way(self, native: NativeWork, result: Sequence[Any], plan: Plan) -> Work:
        return as_torch_keeps_it(CollectiveWork(native, result, plan.finish))

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier through the store: rank 0 says which ranks didn't come, and the group stays usable."""
        if isinstance(timeout, float | int):
            timeout = timedelta(seconds=timeout)
        seconds = (self._timeout if timeout is None else timeout).total_seconds()
        self._monitored_barrier.pass_within(seconds, wait_all_ranks)

    monitoredBarrier = monitored_barrier

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return as_torch_keeps_it(CoalescedWork(works)) if works else DONE

    startCoalescing, endCoalescing = _start_coalescing, _end_coalescing

    def abort(self) -> None:
        self._native.abort("torch aborted the process group")

    def shutdown(self) -> None:
        self._native.close()

    # --- what torch asks about

    def getBackendName(self) -> str:
        return NAME

    def getRank(self) -> int:
        return self._group_rank

    def getSize(self) -> int:
        return self._group_size

    rank, size, name = getRank, getSize, getBackendName

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._native.set_timeout(timeout.total_seconds())

    setTimeout = _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    getSequenceNumberForGroup = _get_sequence_number_for_group

    def _set_sequence_number_for_group(self) -> None:
        pass

    setSequenceNumberForGroup = _set_sequence_number_for_group


def _cut_timeout() -> float | None:
    given = os.environ.get(contract.ENV_CUT_TIMEOUT)
    try:
        seconds = float(given) if given else None
    except ValueError:
        seconds = 0.0
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(
            f"{contract.ENV_CUT_TIMEOUT} is {given!r}, but has to be a number of seconds above 0"
        )
    return seconds


def _close_at_exit(native: ProcessGroup) -> None:
    """A rank that ends without destroying its groups has left them all the same, and hasn't died.

    What it had sent is delivered first. If it can't be, the exit handler raises, and Python prints that to stderr: a
    filter of warnings or a logger's level hides it from nobody. It is too late to fail the program.

    One that failed has: were it to take its leave, those that miss it could fail, and end it, before its end is known.
    """
    reference = weakref.ref(native)

    def close() -> None:
        collective = reference()
        if collective is not None and not has_failed():
            collective.leave()

    atexit.register(close)
    weakref.finalize(native, atexit.unregister, close)
