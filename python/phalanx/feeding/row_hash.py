"""A hash for each row of a DataFrame, by Spark itself, in a column behind all others that no loader sees.

So executors' JVMs, Python workers and a server of Spark Connect have the same hashes, and Spark can sort by them.
Writers take the column off (`feeding/write_blocks.py`, the jar's `BlockTask`).

FEED-64 (whole-row): rows differ in their hashes where they differ in a value, in what is null, in an array's order or
in a collated text's bytes. Maps are what they have, in any order. The sign of a zero and the bits of a NaN don't count.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# How many nulls a number says.
_FLAGS = 60


HASH = "h"
"""What the column of hashes is called among `c0`, `c1` and so on."""


class HashedRows(NamedTuple):
    """A DataFrame with the hash of each row as its last column, and columns called `c0`, `c1` and so on: names may
    differ in their case alone, so only places tell them apart."""

    frame: Any
    names: list[str]
    """What the columns are called."""

    @staticmethod
    def of(frame: Any) -> HashedRows:
        """Those of a DataFrame. Starts nothing."""
        kinds = [field.dataType for field in frame.schema.fields]
        names = [f"c{at}" for at in range(len(kinds))]
        hashed = f"{_hash(zip(names, kinds, strict=True))} AS {HASH}"
        return HashedRows(frame.toDF(*names).selectExpr("*", hashed), list(frame.columns))


def _hash(columns: Any) -> str:
    hashed, flags = [], []
    for name, kind in columns:
        hashed.append(_value(kind, name, 0))
        flags.append(name)
    # xxhash64 passes over nulls, so it is told where they are.
    for first in range(0, len(flags), _FLAGS):
        bits = [
            f"if({name} IS NULL, {1 << at}L, 0L)" for at, name in enumerate(flags[first : first + _FLAGS])
        ]
        hashed.append(" + ".join(bits))
    return f"xxhash64({', '.join(hashed)})"


def _value(kind: Any, at: str, depth: int) -> str:
    """An expression of Spark SQL that xxhash64 takes, for a value of a type that stands at `at`."""
    if _is_plain(kind):
        return at
    name = type(kind).__name__
    one = f"x{depth}"
    if name == "ArrayType":
        return f"transform({at}, {one} -> {_value(kind.elementType, one, depth + 1)})"
    if name == "MapType":
        key = _value(kind.keyType, f"{one}.key", depth + 1)
        value = _value(kind.valueType, f"{one}.value", depth + 1)
        entry = f"xxhash64({key}, {value}, {one}.value IS NULL)"
        return f"array_sort(transform(map_entries({at}), {one} -> {entry}))"
    if name == "StructType":
        if len({field.name.lower() for field in kind.fields}) < len(kind.fields):
            return f"to_json({at})"  # such fields can't be told from one another by their names
        fields = [_value(field.dataType, f"{at}.{_quoted(field.name)}", depth + 1) for field in kind.fields]
        return f"if({at} IS NULL, NULL, struct({', '.join(fields)}))"
    return f"cast({at} AS binary)"  # a text of a collation, for which others are equal


def _is_plain(kind: Any) -> bool:
    """Whether xxhash64 takes values of a type, and tells all of them apart."""
    name = type(kind).__name__
    if name == "ArrayType":
        return _is_plain(kind.elementType)
    if name == "StructType":
        return all(_is_plain(field.dataType) for field in kind.fields)
    return name != "MapType" and getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
