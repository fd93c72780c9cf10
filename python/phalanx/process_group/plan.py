"""A collective on tensors as calls on memory: addresses, what must stay alive meanwhile, what to copy afterwards.

BACKEND-8 (in-place): tensors that are dense, in order and on the CPU are read and written in place.
BACKEND-9 (copies): other tensors go through a copy, those of a GPU through pinned memory. Outputs are copied back once
the calls are done.
BACKEND-10 (checked-first): what can't be reduced or moved is an error before anything has been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# What the native module calls torch's types. Of the others only the bytes are moved.
DTYPES = {
    getattr(torch, name): name
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex64", "complex128"),
        *("int8", "int16", "int32", "int64", "uint8", "bool"),
    )
}


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of a type whose elements can be reduced."""
    try:
        return DTYPES[tensor.dtype]
    except KeyError:
        raise TypeError(f"the phalanx backend can't reduce tensors of {tensor.dtype}") from None


def is_in_place(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is what other ranks may read and write (BACKEND-8)."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_complex() and tensor.is_conj())
        and not tensor.is_neg()
    )


class Plan:
    """The calls of one collective, and what surrounds them."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.kept: list[torch.Tensor] = []
        self._after: list[Callable[[], None]] = []

    def source(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Address and bytes of a tensor that is read."""
        memory = tensor if is_in_place(tensor) else _copy(tensor)
        return self._keep(memory)

    def target(self, tensor: torch.Tensor, *, is_read: bool = False) -> tuple[int, int]:
        """Address and bytes of a tensor that is written, and read before if `is_read`."""
        if is_in_place(tensor):
            return self._keep(tensor)
        memory = _copy(tensor) if is_read else _blank(tensor)
        self._copy_back(tensor, memory)
        return self._keep(memory)

    def sources(self, tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
        """Address and bytes of tensors that are read, one after another."""
        if _is_one_piece(tensors):
            return self._piece(tensors)
        flat = torch.cat([_dense(tensor).reshape(-1).cpu() for tensor in tensors])
        return self._keep(flat)

    def targets(self, tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
        """Address and bytes of tensors that are written, one after another."""
        if _is_one_piece(tensors):
            return self._piece(tensors)
        first = tensors[0]
        flat = torch.empty(
            sum(tensor.numel() for tensor in tensors), dtype=first.dtype, pin_memory=first.is_cuda
        )
        offset = 0
        for tensor in tensors:
            self._copy_back(tensor, flat[offset : offset + tensor.numel()].view(tensor.shape))
            offset += tensor.numel()
        return self._keep(flat)

    @property
    def finish(self) -> Callable[[], None] | None:
        """What is left to do when the calls are done."""
        return self._finish if self._after else None

    def after(self, work: Callable[[], None]) -> None:
        """Adds something that is to be done when the calls are."""
        self._after.append(work)

    def _finish(self) -> None:
        for work in self._after:
            work()

    def _copy_back(self, tensor: torch.Tensor, memory: torch.Tensor) -> None:
        self.after(lambda: _write(tensor, memory))

    def _keep(self, memory: torch.Tensor) -> tuple[int, int]:
        self.kept.append(memory)
        return memory.data_ptr(), memory.numel() * memory.element_size()

    def _piece(self, tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
        self.kept.extend(tensors)
        return tensors[0].data_ptr(), sum(bytes_of(tensor) for tensor in tensors)


def bytes_of(tensor: torch.Tensor) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def check_dense(tensor: torch.Tensor) -> None:
    """Sparse and quantised tensors have no memory of the kind that collectives move (BACKEND-10)."""
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"the phalanx backend doesn't support this collective on sparse tensors ({tensor.layout}), only "
            "all_reduce sums of those with the layout torch.sparse_coo: make it dense"
        )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    check_dense(tensor)
    return tensor.detach().resolve_conj().resolve_neg()


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    check_dense(tensor)
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    memory = _blank(tensor)
    with torch.no_grad():
        memory.copy_(_dense(tensor))
    return memory


def _write(tensor: torch.Tensor, memory: torch.Tensor) -> None:
    """Brings a result to its tensor (BACKEND-9), also to one whose elements share memory, an expanded view."""
    repeated = [stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
    with torch.no_grad():
        if any(repeated):
            once = tuple(slice(0, 1 if one else None) for one in repeated)
            tensor, everything, memory = tensor[once], memory, memory[once]
            if not ((memory == everything) | (memory != memory)).all():
                raise RuntimeError("several results for one element of an expanded view: clone the tensor")
        tensor.copy_(memory)


def _is_one_piece(tensors: Sequence[torch.Tensor]) -> bool:
    address = None
    for tensor in tensors:
        if not is_in_place(tensor) or (address is not None and tensor.data_ptr() != address):
            return False
        address = tensor.data_ptr() + bytes_of(tensor)
    return True
