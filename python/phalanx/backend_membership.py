"""A rank's membership of a process group: how it is joined and left, how calls run, what torch asks about.

OPE-1: every rank's operations run in the order of their calls, synchronous and asynchronous ones alike. OPE-2: a
synchronous operation runs on the caller's thread, unless others are to run before; an asynchronous one on the group's;
both without the interpreter lock. OPE-4: a forked child, as of a DataLoader, has no connection of its parent's groups:
who dies is missed at once, whoever lives on.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Work

from ._native import Collective, Ticket
from .backend_arguments import seconds_of
from .backend_meeting import Meetings
from .backend_plan import Plan
from .backend_work import DONE, CollectiveWork, as_torch_keeps_it
from .inside import has_failed
from .registration import NAME
from .watchdog import waits_natively


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
        self._meetings = Meetings(store, self._group_rank, self._global_ranks)
        self._coalesced: list[Work] | None = None

        def get(key: str, seconds: float) -> bytes:
            store.wait([key], timedelta(seconds=min(seconds, 1e9)))
            return bytes(store.get(key))

        self._native = Collective(
            rank=self._group_rank,
            ranks=self._global_ranks,
            name="phalanx",
            get=get,
            set=store.set,
            timeout=self._timeout.total_seconds(),
            interface=os.environ.get("GLOO_SOCKET_IFNAME"),
            towards=os.environ.get("MASTER_ADDR"),
            activity=activity_path(self._name),
        )
        _JOINED.add(self._native)
        _close_at_exit(self._native)

    @waits_natively
    def _start(self, plan: Plan, result: Sequence[Any], opts: Any, timeout: timedelta | None = None) -> Work:
        seconds = seconds_of(opts, timeout)
        self._sequence += 1
        if getattr(opts, "asyncOp", True):
            ticket = self._native.submit(plan.calls, seconds, plan.kept)
            work = self._under_way(ticket, result, plan)
        else:
            self._native.run(plan.calls, seconds, plan.kept)
            finish = plan.finish
            if finish is not None:
                finish()
            work = DONE
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _under_way(self, ticket: Ticket, result: Sequence[Any], plan: Plan) -> Work:
        return as_torch_keeps_it(CollectiveWork(ticket, result, plan.finish))

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier through the store: rank 0 says which ranks didn't come, and the group stays usable."""
        if isinstance(timeout, float | int):
            timeout = timedelta(seconds=timeout)
        self._meetings.meet((timeout or self._timeout).total_seconds(), wait_all_ranks)

    monitoredBarrier = monitored_barrier

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Work:
        works, self._coalesced = self._coalesced or [], None
        # They run in the order of their calls: when the last is done, all are.
        return works[-1] if works else DONE

    startCoalescing, endCoalescing = _start_coalescing, _end_coalescing

    def abort(self) -> None:
        self._native.abort("torch aborted the process group")

    def shutdown(self) -> None:
        _JOINED.discard(self._native)  # its descriptors will be others' soon
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


def activity_path(group: str) -> str | None:
    """Where others can read what this rank's group is doing; None outside Phalanx."""
    directory = os.environ.get("PHALANX_RANK_DIR")
    if not directory:
        return None
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in group)
    return os.path.join(directory, f"collective-{name}")


_JOINED: weakref.WeakSet[Collective] = weakref.WeakSet()


def _disown_in_child() -> None:
    """OPE-4"""
    for native in _JOINED:
        for descriptor in native.disown():
            os.close(descriptor)
    _JOINED.clear()


os.register_at_fork(after_in_child=_disown_in_child)


def _close_at_exit(native: Collective) -> None:
    """A rank that ends without destroying its groups has left them all the same, and hasn't died.

    One that failed has: were it to take its leave, those that miss it could fail, and end it, before its end is known.
    """
    reference = weakref.ref(native)

    def close() -> None:
        collective = reference()
        if collective is not None and not has_failed():
            _JOINED.discard(collective)
            collective.leave()

    atexit.register(close)
    weakref.finalize(native, atexit.unregister, close)
