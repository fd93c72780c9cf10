"""The sum of sparse tensors (COO), as gloo has it: every rank gets everybody's entries and adds them up itself.

BACKEND-14 (same-bits): the result is coalesced, and equal to the bit on all ranks: entries are added in the order of
ranks.
BACKEND-15 (told-to-all): if ranks' tensors can't be added up, every rank gets an error that says so. The group stays
usable.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._native import Call
from .plan import Plan

_NUMBER = torch.int64


def add_sum(plan: Plan, tensor: torch.Tensor, op: str) -> None:
    """Has the plan replace `tensor` by the sum of all ranks'."""
    if op != "sum":
        raise ValueError(f"like gloo, the phalanx backend has only sums of sparse tensors, not {op}")
    call = Call.all_gather_sized(plan.source(_packed(tensor.detach().coalesce())))
    plan.calls.append(call)
    plan.after(lambda: _put_sum(tensor, call.gathered()))


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """Size, type and entries of a coalesced tensor, as bytes."""
    size = tensor.shape
    numbers = [len(size), *size, tensor.sparse_dim(), tensor._nnz(), *tensor.dtype.__str__().encode()]
    header = torch.tensor([len(numbers), *numbers], dtype=_NUMBER)
    parts = (header, tensor.indices().cpu(), tensor.values().cpu())
    return torch.cat([part.contiguous().reshape(-1).view(torch.uint8) for part in parts])


def _put_sum(tensor: torch.Tensor, packed: Sequence[bytearray]) -> None:
    indices, values, seen = [], [], set()
    for everything in packed:
        rest = torch.frombuffer(everything, dtype=torch.uint8)
        (length,), rest = _taken(rest, 1)
        header, rest = _taken(rest, int(length))
        dimensions, *numbers = header.tolist()
        size, (sparse, entries, *dtype) = tuple(numbers[:dimensions]), numbers[dimensions:]
        seen.add((size, sparse, bytes(dtype).decode()))
        place, rest = _taken(rest, sparse * entries)
        indices.append(place.view(sparse, entries))
        values.append((rest, entries, size[sparse:]))
    if len(seen) > 1:
        kinds = sorted(f"{dtype} of size {list(size)}, {sparse} sparse" for size, sparse, dtype in seen)
        raise RuntimeError(f"all_reduce: sparse tensors that differ can't be added up: {'; '.join(kinds)}")
    every = [rest.clone().view(tensor.dtype).view(entries, *size) for rest, entries, size in values]
    with torch.no_grad():
        entries = torch.sparse_coo_tensor(
            torch.cat(indices, 1), torch.cat(every), tensor.shape, check_invariants=True
        )
        tensor.copy_(entries.coalesce().to(tensor.device))


def _taken(rest: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """So many numbers from the beginning of the bytes, and what follows."""
    size = count * _NUMBER.itemsize
    return rest[:size].clone().view(_NUMBER), rest[size:]
