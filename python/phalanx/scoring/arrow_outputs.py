"""What a model returned, as Arrow's arrays of the types that the user named.

SCORE-16 (no-guess): a value that isn't of the named type is an error, and never another value.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class WrongOutput(TypeError):
    """An output that isn't what `outputs=` says."""


def empty(kind: Any, rows: int) -> Any:
    """Nulls."""
    import pyarrow as pa

    return pa.nulls(rows, kind)


def as_arrow(values: Any, kind: Any, name: str, rows: int) -> Any:
    """An output of so many rows as an array of Arrow's type `kind`, in memory of its own.

    Raises `WrongOutput`.
    """
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        return _cast(values, kind, name)
    element, depth = kind, 0
    while pa.types.is_list(element) or pa.types.is_large_list(element):
        element, depth = element.value_type, depth + 1
    shape = values.shape
    if len(shape) == depth + 2 and shape[-1] == 1:
        values = values.reshape(shape[:-1])  # as many networks have it: a row's number in brackets
    if values.ndim != depth + 1:
        raise WrongOutput(
            f"the model's output {name!r} has shape {shape} for {rows} rows, which is not {_in_words(kind)}"
        )
    if values.dtype == np.bool_:
        flat = pa.array(values.reshape(-1))
    else:
        # A copy: the memory is the next batch's soon.
        flat = pa.Array.from_buffers(
            pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(values.tobytes())]
        )
    array = _cast(flat, element, name)
    for level in range(depth, 0, -1):
        width, count = values.shape[level], int(np.prod(values.shape[:level], dtype=np.int64))
        offsets = np.arange(count + 1, dtype=np.int64) * width
        inner = kind
        for _ in range(level - 1):
            inner = inner.value_type
        is_large = pa.types.is_large_list(inner)
        if not is_large and offsets[-1] > np.iinfo(np.int32).max:
            raise WrongOutput(
                f"the model's output {name!r} is too large for one batch; use a smaller batch_size"
            )
        places = pa.py_buffer(offsets if is_large else offsets.astype(np.int32))
        array = pa.Array.from_buffers(inner, count, [None, places], children=[array])
    return array


def _cast(array: Any, kind: Any, name: str) -> Any:
    import pyarrow as pa

    if array.type == kind:
        return array
    types = pa.types
    loses = types.is_floating(array.type) and not types.is_floating(kind)
    if loses or types.is_boolean(array.type) != types.is_boolean(kind):
        raise WrongOutput(f"the model's output {name!r} is {array.type}, and outputs= says {_in_words(kind)}")
    try:
        return array.cast(kind)
    except pa.ArrowException as problem:
        raise WrongOutput(
            f"the model's output {name!r} is {array.type}, and outputs= says {_in_words(kind)}: {problem}"
        ) from problem


def _in_words(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"an array of {_in_words(kind.value_type)}".replace(
            "an array of an array", "an array of arrays"
        )
    return str(kind)
