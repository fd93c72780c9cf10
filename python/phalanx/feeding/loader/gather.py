"""Rows of several blocks, brought together in the order in which they are wanted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _native
from .arrow_memory import Numbers, Texts, as_indices, memory_of
from .window import InBlocks

if TYPE_CHECKING:
    from .columns import Column


class BlockInMemory:
    """A block, and its columns as they are in memory: of plain ones the numbers, of which a row has `shape` and all
    rows stand in one piece, and of listed ones the texts."""

    def __init__(self, batch: Any, columns: Sequence[Column] | None) -> None:
        self.batch = batch
        self.numbers: list[Numbers | None] = []
        self.texts: list[Texts | None] = []
        for at, column in enumerate(columns or ()):
            array = batch.column(at)
            self.numbers.append(np.ascontiguousarray(column.view(array)) if column.plain else None)
            self.texts.append(Texts(array) if column.listed else None)
        self.memory = [(0, 0) if numbers is None else memory_of(numbers) for numbers in self.numbers]


class Rows:
    """The rows that a plan took."""

    def __init__(self, wanted: _native.WantedRows, block: Callable[[int], BlockInMemory]) -> None:
        self.wanted = wanted
        self._blocks = [block(number) for number in wanted.blocks]

    def in_blocks(self, column: int) -> InBlocks:
        """A plain column, where it is."""
        numbers = [of for block in self._blocks if (of := block.numbers[column]) is not None]
        return InBlocks(numbers, [block.memory[column] for block in self._blocks])

    @functools.cached_property
    def _order(self) -> Numbers:
        """The rows as they stand together by their blocks, whatever their order."""
        return np.argsort(np.frombuffer(self.wanted.places()[0], np.uint32), kind="stable")

    @functools.cached_property
    def _groups(self) -> list[tuple[BlockInMemory, Any, Any]]:
        blocks, rows = self.wanted.places()
        of, numbers = np.frombuffer(blocks, np.uint32), np.frombuffer(rows, np.int64)
        cuts = np.flatnonzero(np.diff(of[self._order])) + 1
        return [
            (self._blocks[of[wanted[0]]], _as_slice(wanted), _as_slice(numbers[wanted]))
            for wanted in np.split(self._order, cuts)
        ]

    def array(self, column: int) -> Any:
        """Any column, as an Arrow array."""
        import pyarrow as pa

        parts = [_taken(block.batch.column(column), rows) for block, _, rows in self._groups]
        if len(parts) == 1:
            return parts[0]
        back = np.empty_like(self._order)
        back[self._order] = np.arange(len(back))
        return pa.concat_arrays(parts).take(as_indices(back))

    def texts(self, column: int) -> list[Any]:
        """A column of strings or bytes, as Python's values."""
        texts = [text for block in self._blocks if (text := block.texts[column]) is not None]
        return self.wanted.texts([text.memory for text in texts], texts[0].is_text)

    def record_batch(self) -> Any:
        """All columns, as an Arrow record batch."""
        import pyarrow as pa

        schema = self._blocks[0].batch.schema
        arrays = [self.array(column) for column in range(len(schema))]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_slice(numbers: Numbers) -> Any:
    """Numbers that follow one another as a slice, which is copied sooner; else as they are."""
    first, last = int(numbers[0]), int(numbers[-1])
    if last - first + 1 == len(numbers) and bool((np.diff(numbers) == 1).all()):
        return slice(first, last + 1)
    return numbers


def _taken(array: Any, rows: Any) -> Any:
    if isinstance(rows, slice):
        return array.slice(rows.start, rows.stop - rows.start)
    return array.take(as_indices(rows))
