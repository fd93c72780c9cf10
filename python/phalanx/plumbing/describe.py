"""A value's type, and a size, in the words of a message."""

from __future__ import annotations

import io


def lives_in_driver(value: object) -> bool:
    """Whether this is a SparkSession, a DataFrame or another handle on something of the driver's."""
    return type(value).__module__.split(".")[0] in ("pyspark", "py4j")


def describe_type(value: object) -> str:
    """A value's type for a sentence: `a _thread.lock`, `an open file`."""
    if isinstance(value, io.IOBase):
        return "an open file"
    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__") and not lives_in_driver(value):
        name = f"{kind.__module__}.{name}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def size(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
