"""Rows of several blocks, brought together in the order in which they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .columns import Column

Numbers = np.ndarray[Any, Any]


class BlockInMemory:
    """A block, and the numbers of its plain columns."""

    def __init__(self, batch: Any, columns: Sequence[Column] | None) -> None:
        self.batch = batch
        self.numbers: list[Numbers | None] = [
            column.view(batch.column(at)) if column.plain else None for at, column in enumerate(columns or ())
        ]


class Rows:
    """The rows that a plan took: for each the number of its block, and its number there."""

    def __init__(self, blocks: bytes, rows: bytes, block: Callable[[int], BlockInMemory]) -> None:
        in_blocks = np.frombuffer(blocks, np.uint32)
        numbers = np.frombuffer(rows, np.int64)
        self._count = len(numbers)
        # A block's rows stand together here, whatever their order.
        self._order = np.argsort(in_blocks, kind="stable")
        cuts = np.flatnonzero(np.diff(in_blocks[self._order])) + 1
        self._groups: list[tuple[BlockInMemory, Any, Any]] = [
            (block(int(in_blocks[wanted[0]])), _as_slice(wanted), _as_slice(numbers[wanted]))
            for wanted in np.split(self._order, cuts)
        ]

    def numbers(self, column: int) -> Numbers:
        """A plain column, in memory of its own."""
        gathered: Numbers | None = None
        for block, wanted, rows in self._groups:
            values = block.numbers[column]
            assert values is not None
            if gathered is None:
                gathered = np.empty((self._count, *values.shape[1:]), values.dtype)
            gathered[wanted] = values[rows]
        assert gathered is not None
        return gathered

    def array(self, column: int) -> Any:
        """Any column, as an Arrow array."""
        import pyarrow as pa

        parts = [_taken(block.batch.column(column), rows) for block, _, rows in self._groups]
        if len(parts) == 1:
            return parts[0]
        back = np.empty_like(self._order)
        back[self._order] = np.arange(self._count)
        return pa.concat_arrays(parts).take(pa.array(back))

    def objects(self, column: int) -> list[Any]:
        """Any column, as Python's values."""
        gathered = np.empty(self._count, object)
        for block, wanted, rows in self._groups:
            gathered[wanted] = _taken(block.batch.column(column), rows).to_numpy(zero_copy_only=False)
        values: list[Any] = gathered.tolist()
        return values

    def record_batch(self) -> Any:
        """All columns, as an Arrow record batch."""
        import pyarrow as pa

        schema = self._groups[0][0].batch.schema
        arrays = [self.array(column) for column in range(len(schema))]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_slice(numbers: Numbers) -> Any:
    """Numbers that follow one another as a slice, which is copied sooner; else as they are."""
    first, last = int(numbers[0]), int(numbers[-1])
    if last - first + 1 == len(numbers) and bool((np.diff(numbers) == 1).all()):
        return slice(first, last + 1)
    return numbers


def _taken(array: Any, rows: Any) -> Any:
    import pyarrow as pa

    if isinstance(rows, slice):
        return array.slice(rows.start, rows.stop - rows.start)
    return array.take(pa.array(rows))
