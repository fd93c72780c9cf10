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
    while _is_list(element):
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
    wrong = f"the model's output {name!r} is {array.type}, and outputs= says {_in_words(kind)}"
    if not _may_become(array.type, kind):
        raise WrongOutput(wrong)
    try:
        made = array.cast(kind)
    except pa.ArrowException as problem:
        raise WrongOutput(f"{wrong}: {problem}") from problem
    if _infinite(made) != _infinite(array):
        raise WrongOutput(f"{wrong}: a number is too large for that")
    return made


def _may_become(given: Any, kind: Any) -> bool:
    """Whether values of a type of Arrow's stay what they are in another one, if they fit; Arrow says whether they do.

    A `double` may become a `float`, which has fewer digits.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_null(given) or given == kind:
        return True
    if _is_list(kind):
        return _is_list(given) and _may_become(given.value_type, kind.value_type)
    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return (
            types.is_struct(given)
            and [field.name for field in given] == list(fields)
            and all(_may_become(field.type, fields[field.name]) for field in given)
        )
    if types.is_integer(given):
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
    kinds = (
        types.is_floating,
        types.is_decimal,
        types.is_timestamp,
        types.is_date,
        types.is_duration,
        _is_string,
    )
    return any(alike(given) and alike(kind) for alike in (*kinds, _is_bytes))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_string(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _infinite(array: Any) -> int:
    """How many numbers are infinite, within lists, too."""
    import pyarrow as pa
    import pyarrow.compute as pc

    while _is_list(array.type):
        array = array.flatten()
    if not pa.types.is_floating(array.type):
        return 0
    return pc.sum(pc.is_inf(array)).as_py() or 0


def _in_words(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"an array of {_in_words(kind.value_type)}".replace(
            "an array of an array", "an array of arrays"
        )
    return str(kind)
