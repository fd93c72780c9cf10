"""Rows of some steps, and the batches that are made of them, each when it is asked for.

FEED-12 (own-memory): each column of a batch has memory of its own, as large as its rows. Whoever changes a batch
changes no data, and whoever keeps one keeps no more than it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ... import _native
from .arrow_memory import Numbers, memory_of


class InBlocks(NamedTuple):
    """A column of numbers, as each of the window's blocks has it: all of the block's rows in one piece."""

    blocks: list[Numbers]
    memory: list[tuple[int, int]]
    """Where each of `blocks` is."""


class Sliced(Protocol):
    """A column that gives what a batch has of it by itself: a list, or arrays of different lengths."""

    def __getitem__(self, rows: slice, /) -> Any: ...


class Window:
    """Gives the batches of `size` rows each of `rows` rows.

    `columns` has each column where it is now: in blocks, of which `wanted` says which rows come when; or as numbers, or
    what can be sliced, whose rows are in their order already.
    """

    def __init__(
        self,
        rows: int,
        size: int,
        columns: Mapping[str, InBlocks | Numbers | Sliced],
        wanted: _native.WantedRows | None = None,
    ) -> None:
        self._rows = rows
        self._size = size
        self._names = list(columns)
        self._sliced: list[tuple[int, Sliced]] = []
        """In the order of the columns, with the number of each."""
        self._kinds: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        copied: list[tuple[int, tuple[int, int] | list[tuple[int, int]]]] = []
        for number, column in enumerate(columns.values()):
            if isinstance(column, InBlocks):
                self._add(column.blocks[0], column.memory, copied)
            elif isinstance(column, np.ndarray):
                self._add(column, memory_of(column), copied)
            else:
                self._sliced.append((number, column))
        self._columns = _native.BatchColumns(wanted, copied, list(columns.values()))

    def _add(self, numbers: Numbers, memory: Any, to: list[tuple[int, Any]]) -> None:
        shape = numbers.shape[1:]
        self._kinds.append(((self._size, *shape), numbers.dtype))
        to.append((numbers.itemsize * math.prod(shape), memory))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # A batch that no local variable has goes when its owner leaves it, not when the next one is there.
        return map(self._batch, range(0, self._rows, self._size))

    def _batch(self, first: int) -> dict[str, Any]:
        empty, tensor = np.empty, torch.from_numpy
        values: list[Any] = [tensor(empty(shape, dtype)) for shape, dtype in self._kinds]
        self._columns.copy(first, self._size, [value.data_ptr() for value in values])
        for number, column in self._sliced:
            values.insert(number, column[first : first + self._size])
        return dict(zip(self._names, values, strict=True))
