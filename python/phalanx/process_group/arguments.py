"""What torch hands to a backend, checked and put into words: reductions, time-outs, splits, lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .plan import DTYPES, bytes_of

Tensor = torch.Tensor
Tensors = Sequence[Tensor]

_SUM = dist.ReduceOp.SUM
_OTHER_REDUCTIONS = {
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}


def reduce_op(opts: Any) -> tuple[str, float]:
    """Name and factor of a reduction, from options or from torch's own names for one."""
    op = getattr(opts, "reduceOp", opts)
    if op is None or op == _SUM:
        return "sum", 1.0
    for known, name in _OTHER_REDUCTIONS.items():
        if op == known:
            return name, 1.0
    state = op.__getstate__()
    factor = state[1] if isinstance(state, tuple) else None
    if factor is None:
        raise ValueError(f"the phalanx backend has no reduction {op}")
    return "premul_sum", float(factor)


def timeout_seconds(opts: Any, timeout: timedelta | None) -> float | None:
    """The time-out of one call; None for the group's."""
    given = timeout if timeout is not None else getattr(opts, "timeout", None)
    seconds = given.total_seconds() if given is not None else 0.0
    return seconds if seconds > 0 else None  # torch's sign for "not given" is negative


def as_list(tensors: Tensors | Tensor) -> Tensors:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def pairs(outputs: Any, inputs: Any) -> list[tuple[Any, Any]]:
    """Each output with its input, where torch gives lists of them or one of each; either may be a list itself."""
    is_one = isinstance(outputs, Tensor) or isinstance(inputs, Tensor)
    return [(outputs, inputs)] if is_one else list(zip(outputs, inputs, strict=True))


def root_of(opts: Any) -> int:
    root = getattr(opts, "rootRank", opts)
    return int(root) if root is not None else 0


def element_counts(tensors: Tensors) -> tuple[list[int], str]:
    """How many elements each has and of which type; bytes, where the native module doesn't know the type."""
    dtype = DTYPES.get(tensors[0].dtype)
    if dtype is None:
        return [bytes_of(tensor) for tensor in tensors], "uint8"
    return [tensor.numel() for tensor in tensors], dtype


def check_parts(operation: str, parts: Tensors, mine: Tensor, rank: int, size: int) -> None:
    if len(parts) != size:
        raise ValueError(f"{operation} has {len(parts)} tensors for {size} ranks")
    own = parts[rank]
    if own.numel() != mine.numel():
        raise ValueError(
            f"{operation}: this rank's tensor has {mine.numel()} elements and its place in the list {own.numel()}"
        )
    check_types(operation, [mine, *parts])


def check_whole(operation: str, *, part: Tensor, whole: Tensor, size: int) -> None:
    if whole.numel() != part.numel() * size:
        raise ValueError(
            f"{operation}: {size} ranks with {part.numel()} elements each don't make {whole.numel()}"
        )
    check_types(operation, [part, whole])


def check_types(operation: str, tensors: Tensors) -> None:
    found = {tensor.dtype for tensor in tensors}
    if len(found) > 1:
        raise TypeError(f"{operation} of tensors of different types: {sorted(map(str, found))}")


def split(tensor: Tensor, sizes: Sequence[int], ranks: int) -> list[int]:
    """How many elements belong to each rank; `sizes` count rows."""
    rows = tensor.size(0) if tensor.dim() else 1
    if not sizes:
        if rows % ranks:
            raise ValueError(f"all_to_all: {rows} rows can't be split equally among {ranks} ranks")
        return [tensor.numel() // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise ValueError(f"all_to_all: splits {list(sizes)} of {rows} rows among {ranks} ranks")
    each = tensor.numel() // rows if rows else 0
    return [size * each for size in sizes]
