"""A task's rows as what its model is given; the tensors are numpy's until then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..feeding.blocks.index import Facts
from ..feeding.blocks.write import facts_of
from ..feeding.loader.columns import Column, by_column, is_text
from .batch_memory import NewColumn, listed

SINGLE = ""
"""What a column is called that is all of a batch."""

_CURE = "give predict a preprocess that makes tensors of it"
_OF = "the DataFrame"


class Tensors:
    """Makes them, and names rows in messages."""

    def __init__(self, inputs: str | list[str], keys: Sequence[str], *, nulls: Any, pad: Any) -> None:
        self._is_single = isinstance(inputs, str)
        self._inputs = [inputs] if isinstance(inputs, str) else inputs
        self._keys, self._nulls, self._pad = keys, nulls, pad

    def of(self, rows: Any, first: int) -> list[NewColumn]:
        """The inputs of a record batch; `first` is the number of its first row in the partition.

        Raises `TypeError` and `ValueError` that name the column, and the row where it is one's.
        """
        batch = rows.select(self._inputs)
        facts = Facts(**facts_of(batch))
        for name, array in zip(self._inputs, batch.columns, strict=True):
            self._check(name, array, facts, rows, first)
        return [
            NewColumn(SINGLE if self._is_single else name, self._values(field, array, facts))
            for name, field, array in zip(self._inputs, batch.schema, batch.columns, strict=True)
        ]

    def of_torch(self, given: list[NewColumn]) -> Any:
        """What `of` made, as tensors of torch's and lists of texts."""
        import torch

        def value(column: NewColumn) -> Any:
            numbers = column.values
            if isinstance(numbers, np.ndarray):
                return torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())
            return listed(numbers)

        return value(given[0]) if self._is_single else {column.name: value(column) for column in given}

    def preprocessed(self, made: Any, rows: Any, first: int) -> list[NewColumn]:
        """What a function of the user's has made of the inputs.

        Raises `TypeError` where that is nothing that a model could be given.
        """
        named = made if isinstance(made, dict) else {SINGLE: made}
        columns = [NewColumn(str(name), _plain(name, values)) for name, values in named.items()]
        for column in columns:
            if len(column.values) != rows.num_rows:
                raise TypeError(
                    f"preprocess returned {len(column.values)} rows for {self.rows_named(rows, first)}"
                )
        return columns

    def rows_named(self, rows: Any, first: int) -> str:
        """Rows of the partition in words."""
        if rows.num_rows == 1:
            return self._row_named(rows, 0, first)
        last = rows.num_rows - 1
        text = f"the rows {first} to {first + last} of the partition"
        return (
            f"{text} ({self._key_values(rows, 0)} to {self._key_values(rows, last)})" if self._keys else text
        )

    def _row_named(self, rows: Any, at: int, first: int) -> str:
        text = f"the row {first + at} of the partition"
        return f"{text} ({self._key_values(rows, at)})" if self._keys else text

    def _key_values(self, rows: Any, at: int) -> str:
        return ", ".join(f"{key}={rows.column(key)[at].as_py()!r}" for key in self._keys)

    def _check(self, name: str, array: Any, facts: Facts, rows: Any, first: int) -> None:
        """Raises `ValueError` where a row has a null or a length that nothing stands for."""
        import pyarrow as pa
        import pyarrow.compute as pc

        lengths = facts.lengths.get(name)
        is_error = isinstance(nulls := by_column(self._nulls, name, "error"), str) and nulls == "error"
        if facts.nulls.get(name) and (lengths is not None or is_error) and not is_text(array.type):
            row = self._row_named(rows, pc.index(array.is_null(), pa.scalar(True)).as_py(), first)
            cure = "fill it in Spark (coalesce)" if lengths else "say what stands for nulls (nulls=0)"
            raise ValueError(f"the column {name!r} has a null in {row}; {cure}")
        if facts.nulls.get(f"{name}[]") and is_error:
            at = next(at for at, value in enumerate(array) if _has_null(value.as_py()))
            raise ValueError(
                f"the column {name!r} has an array with a null in {self._row_named(rows, at, first)}; say what "
                "stands for nulls (nulls=0)"
            )
        if lengths and lengths[0][0] != lengths[0][1] and by_column(self._pad, name, None) is None:
            all_lengths = pc.list_value_length(array)
            usual = all_lengths[0].as_py()
            at = pc.index(pc.not_equal(all_lengths, usual), pa.scalar(True)).as_py()
            raise ValueError(
                f"the column {name!r} has {all_lengths[at].as_py()} elements in {self._row_named(rows, at, first)}, "
                f"and {usual} in the rows before; say what arrays are padded with (pad=0), or {_CURE}"
            )

    def _values(self, field: Any, array: Any, facts: Facts) -> Any:
        column = Column(field, facts, of=_OF, nulls=self._nulls, pad=self._pad, cure=_CURE)
        if column.listed:
            return array
        if column.plain:
            return column.view(array)
        made: Any = column.rows(array)
        return made if isinstance(made, np.ndarray) else made.numbers(slice(0, len(array)))


def _plain(name: str, values: Any) -> Any:
    """What a user's function returned, as numbers of numpy's or an array of Arrow's."""
    import pyarrow as pa

    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values
    if isinstance(values, (list, tuple)):
        return pa.array(values)
    called = "preprocess returned" if name == SINGLE else f"preprocess returned as {name!r}"
    raise TypeError(
        f"{called} {type(values).__name__}; it has to be a tensor, a list of texts, or a dictionary of these"
    )


def _has_null(value: Any) -> bool:
    return isinstance(value, list) and any(item is None or _has_null(item) for item in value)
