"""Arrow's arrays as numpy's and Python's values, and numpy's as Arrow's, by the memory that they have.

pyarrow's own `to_numpy` and `pa.array` import pandas wherever it is installed, which nobody asked for, and which takes
each rank a quarter of a second before its first batch.

FEED-1 (same-values): what comes is what pyarrow's own functions give.
FEED-2 (no-pandas): nothing here imports pandas.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ... import _native

Numbers = np.ndarray[Any, Any]


def numbers_of(array: Any) -> Numbers:
    """An array of numbers or booleans without nulls: numbers in Arrow's own memory, which can't be written."""
    types, kind = pa.types, array.type
    rows, memory = len(array), array.buffers()[1]
    if types.is_boolean(kind):
        first, last = array.offset // 8, (array.offset + rows + 7) // 8
        bits = np.unpackbits(_read(memory, "u1", first, last - first), bitorder="little")
        return bits[array.offset % 8 :][:rows].view(np.bool_)
    letter = "f" if types.is_floating(kind) else "u" if types.is_unsigned_integer(kind) else "i"
    return _read(memory, f"{letter}{kind.bit_width // 8}", array.offset, rows)


def as_indices(numbers: Numbers) -> Any:
    """Integers of 64 bits as an Arrow array, in the same memory."""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))]
    )


def memory_of(numbers: Numbers) -> tuple[int, int]:
    """Where numbers that stand in one piece are, for the native module."""
    return numbers.ctypes.data, numbers.nbytes


class Texts:
    """The strings or bytes of an array, for the native module, for as long as this lives."""

    def __init__(self, array: Any) -> None:
        types = pa.types
        if types.is_fixed_size_binary(array.type):
            array = array.cast(pa.binary())
        kind = array.type
        self.is_text = bool(types.is_string(kind) or types.is_large_string(kind))
        wide = bool(types.is_large_string(kind) or types.is_large_binary(kind))
        _, ends, memory = array.buffers()
        # These two and the array keep the memory.
        ends_of = "i8" if wide else "i4"
        self._ends = (
            _read(ends, ends_of, array.offset, len(array) + 1) if len(array) else np.zeros(1, ends_of)
        )
        self._valid = numbers_of(array.is_valid()) if array.null_count else None
        self._array = array
        self.memory = (
            memory_of(self._ends),
            wide,
            (0, 0) if memory is None else (memory.address, memory.size),
            None if self._valid is None else memory_of(self._valid),
        )

    def values(self) -> list[Any]:
        """All rows; nulls are None."""
        return _native.read_texts(self.memory, self.is_text)


def _read(memory: Any, kind: str, first: int, count: int) -> Numbers:
    """Raises `ValueError` where there is less memory."""
    if not count:
        return np.zeros(0, kind)  # there may be no memory
    return np.frombuffer(memory, kind, count, first * np.dtype(kind).itemsize)
