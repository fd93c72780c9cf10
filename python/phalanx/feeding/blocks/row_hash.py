"""A hash for each row of a DataFrame, by Spark itself, in a column behind all others that no loader sees.

So executors' JVMs, Python workers and a server of Spark Connect have the same hashes, and Spark can sort by them.
Writers take the column off (`feeding/blocks/write.py`, the jar's `BlockTask`). Where nothing has to be sorted JVMs have
no such column: the core computes the same hashes sooner, from the columns of a block (`rust/data/src/row_hash.rs`).

FEED-64 (whole-row): rows differ in their hashes where they differ in a value, in what is null, in an array's order or
in a collated text's bytes. Maps are what they have, in any order. The sign of a zero and the bits of a NaN don't count.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# How many nulls a number says.
_FLAGS = 60


HASH = "h"
"""What the column of hashes is called among `c0`, `c1` and so on."""


class DataRows(NamedTuple):
    """A DataFrame with columns called `c0`, `c1` and so on: names may differ in their case alone, so only places tell
    columns apart."""

    frame: Any
    names: list[str]
    """What the columns are called."""
    is_hashed: bool = False
    """Whether the hash of each row is one column more, the last."""

    @staticmethod
    def of(frame: Any) -> DataRows:
        """Those of a DataFrame, without hashes. Starts nothing."""
        names = list(frame.columns)
        return DataRows(frame.toDF(*(f"c{at}" for at in range(len(names)))), names)

    def hashed(self) -> DataRows:
        """The same with hashes by Spark. Starts nothing."""
        if self.is_hashed:
            return self
        columns = [(field.name, field.dataType) for field in self.frame.schema.fields]
        return DataRows(self.frame.selectExpr("*", f"{_hash(columns)} AS {HASH}"), self.names, is_hashed=True)


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
        # Names may differ in their case alone, or be the same.
        placed = f"cast({at} AS {_type(kind)})"
        fields = [
            _value(field.dataType, f"{placed}.f{number}", depth + 1)
            for number, field in enumerate(kind.fields)
        ]
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


def _type(kind: Any) -> str:
    """A type as Spark SQL says it, in which the fields of structs are called `f0`, `f1` and so on."""
    name = type(kind).__name__
    if name == "ArrayType":
        return f"array<{_type(kind.elementType)}>"
    if name == "MapType":
        return f"map<{_type(kind.keyType)}, {_type(kind.valueType)}>"
    if name == "StructType":
        fields = [f"f{number}: {_type(field.dataType)}" for number, field in enumerate(kind.fields)]
        return f"struct<{', '.join(fields)}>"
    # What `timestamp` means is a setting.
    return "timestamp_ltz" if name == "TimestampType" else str(kind.simpleString())
