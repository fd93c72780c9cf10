"""Which of Spark's types can be tensors.

FEED-75 (tensors-only): what can't be one is refused by the caller, alike in Python and Scala. The types are in
`tests/contract/spark_types.json`, which the tests of both read.
"""

from __future__ import annotations

from typing import Any

_TEXTS = {"String", "Char", "Varchar", "Binary"}
_ATOMS = {
    *("Byte", "Short", "Integer", "Long", "Float", "Double", "Boolean", "Decimal"),
    *("Date", "Time", "Timestamp", "TimestampNTZ", "DayTimeInterval"),
    *_TEXTS,
}


def is_vector(kind: Any) -> bool:
    """Whether a type is that of `pyspark.ml`'s vectors."""
    return type(kind).__name__ == "VectorUDT"


def is_text(kind: Any) -> bool:
    """Whether a type is one of texts or bytes."""
    return _name(kind) in _TEXTS


def has_arrays(kind: Any) -> bool:
    """Whether each value is an array."""
    return is_vector(kind) or _name(kind) == "Array"


def stored_as(kind: Any) -> Any:
    """What Spark has a user's own type as, which is what Arrow gets; any other type as it is."""
    return kind.sqlType() if hasattr(kind, "sqlType") and not is_vector(kind) else kind


def can_travel(kind: Any) -> bool:
    """Whether a type is one that Spark brings to Arrow, and a loader to tensors or to a transform."""
    name = _name(kind)
    if name == "Array":
        return can_travel(kind.elementType)
    if name == "Map":
        return can_travel(kind.keyType) and can_travel(kind.valueType)
    if name == "Struct":
        return all(can_travel(field.dataType) for field in kind.fields)
    return name in _ATOMS


def can_be_tensor(kind: Any) -> bool:
    """Whether a type is one of numbers, of arrays of these, or of texts, which are a list; a user's own by what it is
    stored as."""
    kind = element = stored_as(kind)
    while _name(element) == "Array":
        element = stored_as(element.elementType)
    return is_vector(kind) or _name(element) in (_ATOMS if element is kind else _ATOMS - _TEXTS)


def _name(kind: Any) -> str:
    return type(kind).__name__.removesuffix("Type")
