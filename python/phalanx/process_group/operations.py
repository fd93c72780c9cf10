"""The operations of a process group, as plans of native calls.

BACKEND-5 (no-compiling): the names are those of torch from 2.4 on, old and new. Nothing here is compiled against torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Work

from .._native import Call
from . import sparse
from .arguments import (
    Tensor,
    Tensors,
    as_list,
    check_parts,
    check_whole,
    element_counts,
    pairs,
    reduce_op,
    root_of,
    split,
)
from .membership import Membership
from .plan import DTYPES, Plan, dtype_name
from .work import DoneWork


class Operations(Membership):
    """Reductions, moves and messages."""

    # --- reductions

    def allreduce(
        self, tensors: Tensors | Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        tensors = as_list(tensors)
        op, factor = reduce_op(opts)
        plan = Plan()
        for tensor in tensors:
            if tensor.is_sparse:
                sparse.add_sum(plan, tensor, op)
            else:
                memory = plan.target(tensor, is_read=True)
                plan.calls.append(Call.all_reduce(memory, dtype_name(tensor), op, factor))
        return self._start(plan, tensors, opts, timeout)

    allreduce_coalesced = allreduce_sparse = allreduce

    def reduce(
        self, tensors: Tensors | Tensor, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> Work:
        tensors = as_list(tensors)
        root, name = root_of(opts), reduce_op(opts if op is None else op)
        plan = Plan()
        for tensor in tensors:
            is_root = root == self._group_rank
            memory = plan.target(tensor, is_read=True) if is_root else plan.source(tensor)
            plan.calls.append(Call.reduce(memory, dtype_name(tensor), *name, root))
        return self._start(plan, tensors, opts, timeout)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        op, factor = reduce_op(opts)
        plan = Plan()
        each = pairs(outputs, inputs)
        for output, parts in each:
            check_parts("reduce_scatter", parts, output, self._group_rank, self._group_size)
            counts = [part.numel() for part in parts]
            source, target = plan.sources(parts), plan.target(output)
            plan.calls.append(Call.reduce_scatter(source, target, counts, dtype_name(output), op, factor))
        return self._start(plan, [output for output, _ in each], opts, timeout)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        op, factor = reduce_op(opts)
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
        tensors = as_list(tensors)
        root = root_of(opts)
        plan = Plan()
        for tensor in tensors:
            memory = plan.target(tensor, is_read=True) if root != self._group_rank else plan.source(tensor)
            plan.calls.append(Call.broadcast(memory, DTYPES.get(tensor.dtype, "uint8"), root))
        return self._start(plan, tensors, opts, timeout)

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        each = pairs(outputs, inputs)
        plan = self._gathering("all_gather", each)
        return self._start(plan, [parts for parts, _ in each], opts, timeout)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """`outputs` has a list for each rank, of all its tensors; that of `allgather` one for each tensor."""
        if len(outputs) != self._group_size:
            raise ValueError(f"all_gather_coalesced has {len(outputs)} lists for {self._group_size} ranks")
        each = list(zip(zip(*outputs, strict=True), inputs, strict=True))
        return self._start(self._gathering("all_gather_coalesced", each), outputs, opts)

    def _gathering(self, operation: str, each: Sequence[tuple[Tensors, Tensor]]) -> Plan:
        plan = Plan()
        for parts, input in each:
            check_parts(operation, parts, input, self._group_rank, self._group_size)
            source, target = plan.source(input), plan.targets(parts)
            plan.calls.append(Call.all_gather(source, target, element_counts(parts)))
        return plan

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        plan = Plan()
        for output, input in zip(outputs, inputs, strict=True):
            check_whole("all_gather_into_tensor", part=input, whole=output, size=self._group_size)
            source, target = plan.source(input), plan.target(output)
            plan.calls.append(Call.all_gather(source, target, element_counts([input] * self._group_size)))
        return self._start(plan, outputs, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        for tensors in (outputs, inputs):
            if len(tensors) != self._group_size:
                raise ValueError(f"all_to_all has {len(tensors)} tensors for {self._group_size} ranks")
        plan = Plan()
        sent, dtype = element_counts(inputs)
        received, _ = element_counts(outputs)
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
        if root == self._group_rank:
            check_parts("gather", parts, inputs[0], self._group_rank, self._group_size)
            target = plan.targets(parts)
        else:
            target = (0, 0)
        plan.calls.append(Call.gather(plan.source(inputs[0]), target, element_counts(parts or inputs), root))
        return self._start(plan, outputs, opts, timeout)

    def scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        root = root_of(opts)
        plan = Plan()
        parts = inputs[0] if root == self._group_rank else []
        if root == self._group_rank:
            check_parts("scatter", parts, outputs[0], self._group_rank, self._group_size)
            source = plan.sources(parts)
        else:
            source = (0, 0)
        plan.calls.append(
            Call.scatter(source, plan.target(outputs[0]), element_counts(parts or outputs), root)
        )
        return self._start(plan, outputs, opts, timeout)

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        plan = Plan()
        memory = plan.source(tensors[0])
        self._native.send(memory, dst, tag)
        return self._noted(DoneWork(tensors))

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Tensors, source: int | None, tag: int) -> Work:
        plan = Plan()
        memory = plan.target(tensors[0])
        return self._noted(
            self._under_way(self._native.receive(memory, source, tag, None, plan.kept), tensors, plan)
        )

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        plan = Plan()
        plan.calls.append(Call.barrier())
        return self._start(plan, [], opts, timeout)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    recvAnysource = recv_anysource
