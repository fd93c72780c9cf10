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
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
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
    if _overflows(array, made):
        raise WrongOutput(f"{wrong}: a number is too large for that")
    return made


def _may_become(given: Any, kind: Any) -> bool:
    """Whether values of a type of Arrow's stay what they are in another one, if they fit; Arrow says whether they do.

    A `float` may have fewer digits than what becomes one. Of a struct the named fields are taken, and those that are
    missing are null.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(given):
        given = given.value_type
    if types.is_null(given) or given == kind:
        return True
    if _is_list(kind):
        return _is_list(given) and _may_become(given.value_type, kind.value_type)
    if types.is_struct(kind):
        fields = {field.name: field.type for field in given} if types.is_struct(given) else {}
        both = [field for field in kind if field.name in fields]
        return bool(both) and all(_may_become(fields[field.name], field.type) for field in both)
    if types.is_floating(kind):
        return bool(types.is_floating(given) or types.is_integer(given) or types.is_decimal(given))
    if types.is_decimal(kind):
        return bool(types.is_decimal(given) or types.is_integer(given))
    kinds = (types.is_integer, types.is_timestamp, types.is_date, types.is_time, types.is_duration)
    return any(alike(given) and alike(kind) for alike in (*kinds, _is_string, _is_bytes))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_string(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def _is_bytes(kind: Any) -> bool:
    return str(kind).startswith(("binary", "large_binary", "fixed_size_binary"))


def _overflows(given: Any, made: Any) -> bool:
    """Whether a number that wasn't infinite is, once it has become another type's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _is_list(made.type):
        return _is_list(given.type) and _overflows(given.flatten(), made.flatten())
    if pa.types.is_struct(made.type):
        names = [field.name for field in given.type] if pa.types.is_struct(given.type) else []
        both = [field.name for field in made.type if field.name in names]
        return any(_overflows(given.field(name), made.field(name)) for name in both)
    if not pa.types.is_floating(made.type) or not pa.types.is_floating(given.type):
        return False
    return bool(pc.sum(pc.is_inf(made)) != pc.sum(pc.is_inf(given)))


def _in_words(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"an array of {_in_words(kind.value_type)}".replace(
            "an array of an array", "an array of arrays"
        )
    return str(kind)
