"""A column of rows as tensors.

FEED-11 (as-they-are): values keep their bits and their types; docs/data.md has the tensor type of each.
FEED-13 (named): what can't be a tensor is an error that names the column and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..blocks.index import Facts

if TYPE_CHECKING:
    import numpy as np

    from .ragged import Ragged

JAGGED = "jagged"
"""The `pad` of tensors whose rows have different lengths."""

LIST = "list"
"""The `pad` of arrays that are lists of tensors, also where all have one length."""

Nulls = Any
"""`"error"`, or the value that stands for nulls in tensors; or one of these by column."""


TRANSFORM = "give the loader a transform that makes tensors of its record batches"
"""What a loader's user can do with a column that can't be a tensor."""


def columns_of(schema: Any, facts: Facts, *, data_set: str, nulls: Nulls, pad: Any) -> list[Column]:
    """How each column of a data set becomes tensors.

    Raises `TypeError` and `ValueError` where one can't, and `ValueError` where `nulls` or `pad` names what isn't there.
    """
    check_names(schema, data_set=data_set, nulls=nulls, pad=pad)
    of = f"the data set {data_set!r}"
    columns = [Column(field, facts, of=of, nulls=nulls, pad=pad) for field in schema]
    for column in columns:
        if column.listed and isinstance(nulls, Mapping) and column.name in nulls:
            raise ValueError(f"nulls= names {column.called}, whose nulls are None in a list")
        if not column.levels and isinstance(pad, Mapping) and column.name in pad:
            raise ValueError(f"pad= names {column.called}, which has no arrays")
    return columns


def check_names(schema: Any, *, data_set: str, nulls: Nulls, pad: Any) -> None:
    """Raises `ValueError` where `nulls` or `pad` names what is no column."""
    for argument, given in (("nulls", nulls), ("pad", pad)):
        for name in given if isinstance(given, Mapping) else ():
            if name not in schema.names:
                has = ", ".join(map(repr, schema.names))
                raise ValueError(
                    f"{argument}= names {name!r}, which is not a column of the data set {data_set!r}: it has {has}"
                )


def by_column(given: Any, name: str, default: Any) -> Any:
    """What an argument says of one column: it has a value for all, or for those that it names."""
    return given.get(name, default) if isinstance(given, Mapping) else given


class Column:
    """How one column becomes tensors.

    `plain` says that each block's rows are numbers in one piece of memory, which `view` shows. `of` is what has the
    column, and `cure` what to do with one that can't be a tensor, for messages.
    """

    def __init__(
        self, field: Any, facts: Facts, *, of: str, nulls: Nulls, pad: Any, cure: str = TRANSFORM
    ) -> None:
        import pyarrow as pa

        self.name: str = field.name
        self._nulls = by_column(nulls, self.name, "error")
        self._pad = by_column(pad, self.name, None)
        self.called = f"the column {self.name!r} of {of}"
        """How messages call it."""
        element, self.levels = field.type, 0
        """How deep its arrays are: 0 where it has none."""
        while _is_list(element):
            element = element.value_type
            self.levels += 1
        self._element = element
        self._storage = _storage(element)
        self._kind = pa.float64() if pa.types.is_decimal(element) else self._storage
        if pa.types.is_boolean(element):
            self._kind = element
        self.listed = self.levels == 0 and is_text(element)
        """Whether its values are Python's, in a list."""
        if self._kind is None and not self.listed:
            raise TypeError(
                f"{self.called} is of type {field.type}, which can't be a tensor; leave it out, or {cure}"
            )
        lengths = facts.lengths.get(self.name, [])
        self.shape: tuple[int, ...] | None = None
        """The shape of each row, where all have the same."""
        if self._is(LIST) and self.levels == 1:
            pass
        elif all(shortest == longest for shortest, longest in lengths) and len(lengths) == self.levels:
            self.shape = tuple(max(longest, 0) for _, longest in lengths)
        elif self.levels > 1:
            raise TypeError(
                f"{self.called} has arrays of arrays with different lengths, which can't be a tensor; {cure}"
            )
        has_nulls = bool(facts.nulls.get(self.name) or facts.nulls.get(f"{self.name}[]"))
        if has_nulls and not self.listed:
            self._check_nulls(facts)
            self._null = self._standing("nulls", self._nulls)
        self._padding: Any = None
        """What arrays of different lengths are padded with, if they are."""
        stay_apart = self._pad is None or self._is(LIST) or self._is(JAGGED)
        if self.shape is None and not self.listed and not stay_apart:
            self._padding = self._standing("pad", self._pad).as_py()
        self.plain = self._storage is not None and self.shape is not None and not has_nulls

    def _is(self, pad: str) -> bool:
        return isinstance(self._pad, str) and self._pad == pad

    def _check_nulls(self, facts: Facts) -> None:
        nulls = facts.nulls.get(self.name, 0)
        if self.levels and nulls:
            raise ValueError(
                f"{self.called} has {nulls} rows without an array; fill them in Spark (coalesce), or give the loader "
                "a transform"
            )
        if isinstance(self._nulls, str) and self._nulls == "error":
            count = nulls + facts.nulls.get(f"{self.name}[]", 0)
            raise ValueError(
                f"{self.called} has {count} nulls; give the loader a value for them (nulls=0), or fill them in Spark"
            )

    def _standing(self, argument: str, value: Any) -> Any:
        """What stands in tensors for `value`, in their type: numbers are of that type, other values of the column's."""
        import pyarrow as pa

        types = pa.types
        try:
            found = pa.scalar(value)
            is_number = types.is_integer(found.type) or types.is_floating(found.type)
            if not is_number and not types.is_boolean(found.type):
                found = found.cast(self._element)
            found = found.cast(self._kind)
            if not found.is_valid:
                raise ValueError("it is a null")
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as problem:
            raise ValueError(
                f"{argument}={value!r} doesn't fit {self.called}, which has {self._element}, and {self._kind} in "
                f"tensors: {problem}"
            ) from problem
        return found

    def view(self, array: Any) -> np.ndarray[Any, Any]:
        """The rows of a block, in its own memory; for `plain` columns."""
        from .arrow_memory import numbers_of

        assert self.shape is not None
        rows = len(array)
        for _ in range(self.levels):
            array = array.flatten()
        return numbers_of(array.view(self._storage)).reshape(rows, *self.shape)

    def rows(self, array: Any) -> np.ndarray[Any, Any] | Ragged:
        """The rows of an array, for columns that aren't `listed`: numbers of which a row has `shape`, or arrays of
        different lengths. They may be in Arrow's own memory."""
        rows = len(array)
        if self.shape is None:
            from .ragged import Jagged, Listed, Padded

            values, offsets = self._numbers(array.flatten()), _offsets(array)
            if self._padding is not None:
                return Padded(values, offsets, self._padding)
            return Jagged(values, offsets) if self._is(JAGGED) else Listed(values, offsets)
        for _ in range(self.levels):
            array = array.flatten()
        return self._numbers(array).reshape(rows, *self.shape)

    def _numbers(self, array: Any) -> np.ndarray[Any, Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from .arrow_memory import numbers_of

        array = array.cast(self._kind) if pa.types.is_decimal(array.type) else array.view(self._kind)
        if array.null_count:
            array = pc.fill_null(array, self._null)
        return numbers_of(array)


def _offsets(array: Any) -> np.ndarray[Any, Any]:
    """Where in the elements of all each of the arrays begins, and where the last one ends."""
    import numpy as np
    import pyarrow as pa

    from .arrow_memory import numbers_of

    if pa.types.is_fixed_size_list(array.type):
        return np.arange(len(array) + 1, dtype=np.int64) * int(array.type.list_size)
    return numbers_of(array.offsets)


def _storage(kind: Any) -> Any:
    """The Arrow type of numbers that has the same bits, if there is one."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind):
        return kind
    if types.is_date32(kind) or types.is_time32(kind):
        return pa.int32()
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time64(kind) or types.is_date64(kind):
        return pa.int64()
    return None


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is one of strings or bytes."""
    import pyarrow as pa

    types = pa.types
    tests = (
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
