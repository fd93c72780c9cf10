"""The operations of a process group.

OPE-1: every rank's operations run in the order of their calls, synchronous and asynchronous ones alike. OPE-2: a
synchronous operation runs on the caller's thread, without the interpreter lock; an asynchronous one on the group's.
OPE-3: names are those of torch from 2.4 on, the old and the new: nothing here is compiled against torch.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Work

from ._native import Call, Collective, Ticket
from .backend_arguments import (
    Tensor,
    Tensors,
    check_parts,
    check_whole,
    counted,
    listed,
    reduction,
    root_of,
    seconds_of,
    split,
)
from .backend_plan import DTYPES, Plan, check_dense, dtype_name
from .backend_work import DONE, CollectiveWork, DoneWork, as_torch_keeps_it
from .registration import NAME


class Operations:
    """The operations, and what torch asks a process group or a backend about."""

    supports_splitting = supports_coalescing = supports_shrinking = False
    supports_time_estimate = _supports_time_estimate = False

    def _open(self, options: Any) -> None:
        store: Any = options.store
        self._store = store
        self._group_rank: int = options.group_rank
        self._group_size: int = options.group_size
        self._name = str(options.group_id)
        self._timeout: timedelta = options.timeout
        self._global_ranks = list(options.global_ranks_in_group) or list(range(self._group_size))
        self._sequence = 0
        self._barriers = 0
        self._coalesced: list[Work] | None = None

        def get(key: str, seconds: float) -> bytes:
            store.wait([key], timedelta(seconds=min(seconds, 1e9)))
            return bytes(store.get(key))

        self._native = Collective(
            rank=self._group_rank,
            world_size=self._group_size,
            name="phalanx",
            get=get,
            set=store.set,
            timeout=self._timeout.total_seconds(),
            interface=os.environ.get("GLOO_SOCKET_IFNAME"),
            towards=os.environ.get("MASTER_ADDR"),
            activity=activity_path(self._name),
        )
        _close_at_exit(self._native)

    # --- how operations run

    def _start(self, plan: Plan, result: Sequence[Any], opts: Any, timeout: timedelta | None = None) -> Work:
        seconds = seconds_of(opts, timeout)
        self._sequence += 1
        if getattr(opts, "asyncOp", True):
            ticket = self._native.submit(plan.calls, seconds, plan.kept)
            work = self._under_way(ticket, result, plan)
        else:
            self._native.run(plan.calls, seconds)
            finish = plan.finish
            if finish is not None:
                finish()
            work = DONE
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # --- reductions

    def allreduce(
        self, tensors: Tensors | Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        tensors = listed(tensors)
        op, factor = reduction(opts)
        plan = Plan()
        for tensor in tensors:
            memory = plan.target(tensor, is_read=True)
            plan.calls.append(Call.all_reduce(memory, dtype_name(tensor), op, factor))
        return self._start(plan, tensors, opts, timeout)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def allreduce_sparse(self, tensors: Tensors, opts: Any = None) -> Work:
        check_dense(tensors[0])
        return self.allreduce(tensors, opts)

    def reduce(
        self, tensors: Tensors | Tensor, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> Work:
        tensors = listed(tensors)
        root, name = root_of(opts), reduction(opts if op is None else op)
        plan = Plan()
        for tensor in tensors:
            is_root = root == self._group_rank
            memory = plan.target(tensor, is_read=True) if is_root else plan.source(tensor)
            plan.calls.append(Call.reduce(memory, dtype_name(tensor), *name, root))
        return self._start(plan, tensors, opts, timeout)

    def reduce_scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        outs, ins = ([outputs], [inputs]) if isinstance(outputs, Tensor) else (outputs, inputs)
        op, factor = reduction(opts)
        plan = Plan()
        for output, parts in zip(outs, ins, strict=True):
            check_parts("reduce_scatter", parts, output, self._group_rank, self._group_size)
            counts = [part.numel() for part in parts]
            source, target = plan.sources(parts), plan.target(output)
            plan.calls.append(Call.reduce_scatter(source, target, counts, dtype_name(output), op, factor))
        return self._start(plan, outs, opts, timeout)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        op, factor = reduction(opts)
        plan = Plan()
        for output, input in zip(outputs, inputs, strict=True):
            check_whole("reduce_scatter_tensor", part=output, whole=input, size=self._group_size)
            counts = [output.numel()] * self._group_size
            source, target = plan.source(input), plan.target(output)
            plan.calls.append(Call.reduce_scatter(source, target, counts, dtype_name(output), op, factor))
        return self._start(plan, outputs, opts)

    # --- moves

    def broadcast(
        self, tensors: Tensors | Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        tensors = listed(tensors)
        root = root_of(opts)
        plan = Plan()
        for tensor in tensors:
            memory = plan.target(tensor, is_read=True) if root != self._group_rank else plan.source(tensor)
            plan.calls.append(Call.broadcast(memory, DTYPES.get(tensor.dtype, "uint8"), root))
        return self._start(plan, tensors, opts, timeout)

    def allgather(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        outs, ins = ([outputs], [inputs]) if isinstance(inputs, Tensor) else (outputs, inputs)
        plan = Plan()
        for parts, input in zip(outs, ins, strict=True):
            check_parts("all_gather", parts, input, self._group_rank, self._group_size)
            source, target = plan.source(input), plan.targets(parts)
            plan.calls.append(Call.all_gather(source, target, *counted(parts)))
        return self._start(plan, outs, opts, timeout)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        return self.allgather(outputs, inputs, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        plan = Plan()
        for output, input in zip(outputs, inputs, strict=True):
            check_whole("all_gather_into_tensor", part=input, whole=output, size=self._group_size)
            source, target = plan.source(input), plan.target(output)
            plan.calls.append(Call.all_gather(source, target, *counted([input] * self._group_size)))
        return self._start(plan, outputs, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        for tensors in (outputs, inputs):
            if len(tensors) != self._group_size:
                raise ValueError(f"all_to_all has {len(tensors)} tensors for {self._group_size} ranks")
        plan = Plan()
        sent, dtype = counted(inputs)
        received, _ = counted(outputs)
        source, target = plan.sources(inputs), plan.targets(outputs)
        plan.calls.append(Call.all_to_all(source, sent, target, received, dtype))
        return self._start(plan, outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        plan = Plan()
        sent, received = (
            split(input, input_splits, self._group_size),
            split(output, output_splits, self._group_size),
        )
        dtype = DTYPES.get(input.dtype)
        if dtype is None:
            sent = [count * input.element_size() for count in sent]
            received = [count * output.element_size() for count in received]
        source, target = plan.source(input), plan.target(output)
        plan.calls.append(Call.all_to_all(source, sent, target, received, dtype or "uint8"))
        return self._start(plan, [output], opts)

    def gather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        root = root_of(opts)
        plan = Plan()
        parts = outputs[0] if root == self._group_rank else []
        counts, dtype = counted(parts or inputs)
        if root == self._group_rank:
            check_parts("gather", parts, inputs[0], self._group_rank, self._group_size)
            target = plan.targets(parts)
        else:
            target = (0, 0)
        plan.calls.append(Call.gather(plan.source(inputs[0]), target, counts, dtype, root))
        return self._start(plan, outputs, opts, timeout)

    def scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        root = root_of(opts)
        plan = Plan()
        parts = inputs[0] if root == self._group_rank else []
        counts, dtype = counted(parts or outputs)
        if root == self._group_rank:
            check_parts("scatter", parts, outputs[0], self._group_rank, self._group_size)
            source = plan.sources(parts)
        else:
            source = (0, 0)
        plan.calls.append(Call.scatter(source, plan.target(outputs[0]), counts, dtype, root))
        return self._start(plan, outputs, opts, timeout)

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        plan = Plan()
        memory = plan.source(tensors[0])
        ticket = self._native.send(memory, dst, tag, plan.kept)
        return DoneWork(tensors) if ticket is None else self._under_way(ticket, tensors, plan)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Tensors, source: int | None, tag: int) -> Work:
        plan = Plan()
        memory = plan.target(tensors[0])
        return self._under_way(self._native.receive(memory, source, tag, None, plan.kept), tensors, plan)

    def _under_way(self, ticket: Ticket, result: Sequence[Any], plan: Plan) -> Work:
        return as_torch_keeps_it(CollectiveWork(ticket, result, plan.finish))

    # --- meeting, and the end

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        plan = Plan()
        plan.calls.append(Call.barrier())
        return self._start(plan, [], opts, timeout)

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier through the store: rank 0 says which ranks didn't come, and the group stays usable."""
        if isinstance(timeout, float | int):
            timeout = timedelta(seconds=timeout)
        seconds = (timeout or self._timeout).total_seconds()
        deadline = time.monotonic() + seconds
        self._barriers += 1
        key = f"monitored_barrier/{self._barriers}"

        def came(name: str, until: float) -> bool:
            try:
                self._store.wait([name], timedelta(seconds=max(until - time.monotonic(), 0.001)))
            except RuntimeError:
                return False
            return True

        if self._group_rank != 0:
            self._store.set(f"{key}/{self._group_rank}", b"1")
            # Rank 0 may come later than this rank, and wait its time for the last.
            if not came(f"{key}/over", deadline + seconds):
                raise RuntimeError(
                    f"rank {self._group_rank}: rank {self._global_ranks[0]} failed to pass monitored_barrier "
                    f"in {seconds:g} s"
                )
            problem = bytes(self._store.get(f"{key}/over")).decode()
        else:
            missing = []
            for rank in range(1, self._group_size):
                if not came(f"{key}/{rank}", deadline):
                    missing.append(str(self._global_ranks[rank]))
                    if not wait_all_ranks:
                        break
            problem = (
                f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} failed to pass monitored_barrier in "
                f"{seconds:g} s"
                if missing
                else ""
            )
            self._store.set(f"{key}/over", problem.encode())
        if problem:
            raise RuntimeError(f"rank {self._group_rank}: {problem}")

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

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    recvAnysource = recv_anysource


def activity_path(group: str) -> str | None:
    """Where others can read what this rank's group is doing; None outside Phalanx."""
    directory = os.environ.get("PHALANX_RANK_DIR")
    if not directory:
        return None
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in group)
    return os.path.join(directory, f"collective-{name}")


def _close_at_exit(native: Collective) -> None:
    """A rank that ends without destroying its groups has left them all the same, and hasn't died."""
    reference = weakref.ref(native)

    def close() -> None:
        collective = reference()
        if collective is not None:
            collective.leave()

    atexit.register(close)
    weakref.finalize(native, atexit.unregister, close)
