"""The memory of batches, mapped; both ends of a model's process write and read it."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

ARROW = "arrow"
"""The element of a column that is an IPC stream, as strings are."""
PICKLE = "pickle"
"""The element of one that is a pickle: of a process of the same user, which has proved that."""


class NewColumn(NamedTuple):
    """A column that is to be written."""

    name: str
    values: Any
    """Numbers of numpy's, an array or a record batch of Arrow's, or a pickle, in a batch of one row. A model is given
    arrays of Arrow's as lists, which are never written."""

    def listed(self) -> NewColumn:
        """The same, with an array of Arrow's as a list, as a model is given it."""
        if isinstance(self.values, (np.ndarray, list)):
            return self
        return NewColumn(self.name, listed(self.values))

    def written(self) -> tuple[tuple[str, str, Sequence[int], int], Any]:
        """What the native module is told of it, and what `write` writes."""
        if isinstance(self.values, np.ndarray):
            values = np.ascontiguousarray(self.values)
            return (self.name, values.dtype.name, values.shape, values.nbytes), values
        if isinstance(self.values, bytes):
            return (self.name, PICKLE, (1,), len(self.values)), self.values
        import pyarrow as pa

        is_batch = isinstance(self.values, pa.RecordBatch)
        batch = self.values if is_batch else pa.record_batch([self.values], [self.name])
        counted = pa.MockOutputStream()
        _stream(batch, counted)
        return (self.name, ARROW, (batch.num_rows,), counted.size()), batch


def listed(array: Any) -> list[Any]:
    """The values of an array of Arrow's as Python's."""
    from ..feeding.loader.arrow_memory import Texts
    from ..feeding.loader.columns import is_text

    return Texts(array).values() if is_text(array.type) else list(array.to_pylist())


def mapped(file: tuple[int, int], *, writable: bool) -> mmap.mmap:
    """Maps memory, and closes the descriptor."""
    descriptor, size = file
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def write(memory: mmap.mmap, at: Sequence[int], columns: Sequence[Any]) -> None:
    """Writes what `NewColumn.written` made of columns to where they belong."""
    import pyarrow as pa

    for start, values in zip(at, columns, strict=True):
        if isinstance(values, np.ndarray):
            if values.size:
                there: Any = np.frombuffer(memory, values.dtype, values.size, start)
                there.reshape(values.shape)[...] = values
        elif isinstance(values, bytes):
            memory[start : start + len(values)] = values
        else:
            _stream(values, pa.FixedSizeBufferWriter(pa.py_buffer(memoryview(memory)[start:])))


def _stream(batch: Any, into: Any) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(into, batch.schema) as stream:
        stream.write_batch(batch)


def read_rows(memory: mmap.mmap, column: tuple[str, str, list[int], int, int]) -> Any:
    """The record batch that a column is, in memory of its own."""
    import pyarrow as pa

    _, _, _, start, size = column
    with pa.ipc.open_stream(memory[start : start + size]) as stream:
        return stream.read_next_batch()


def read(memory: mmap.mmap, column: tuple[str, str, list[int], int, int]) -> Any:
    """A column that is in memory: numbers in the memory itself, an array of Arrow's own, or what a pickle has."""
    _, element, shape, start, size = column
    if element == ARROW:
        return read_rows(memory, column).column(0)
    if element == PICKLE:
        return pickle.loads(memory[start : start + size])
    kind = np.dtype(element)
    return np.frombuffer(memory, kind, size // kind.itemsize, start).reshape(shape)
