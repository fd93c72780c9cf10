"""Which columns a model is given, and which it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..feeding.spark_types import can_be_tensor, can_travel, has_arrays, is_text, is_vector, stored_as

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_EXAMPLE = '"probability array<float>, label int"'


class Inputs(NamedTuple):
    """What the model is given of each row, and what messages name a row by."""

    names: list[str] | str
    """One column's, whose tensor is the batch; or several, for a dictionary."""
    keys: list[str]
    columns: list[Column]
    """The columns of both, vectors as arrays."""
    kinds: dict[str, Any]
    """Spark's types of the inputs, users' own as what they are stored as."""

    @staticmethod
    def given(df: DataFrame, inputs: str | Sequence[str], keys: Sequence[str]) -> Inputs:
        """Raises `TypeError` and `ValueError` where they are not columns of `df`, or of types that can't be."""
        names = [inputs] if isinstance(inputs, str) else list(inputs)
        if not names:
            raise ValueError("inputs= names no column")
        kinds = {}
        for field in df.schema.fields:
            if field.name in kinds and field.name in (*names, *keys):
                raise ValueError(f"there are several columns {field.name!r}; rename them")
            kinds[field.name] = stored_as(field.dataType)
        for argument, asked in (("inputs", names), ("keys", keys)):
            for name in asked:
                if not isinstance(name, str):
                    raise TypeError(f"{argument}= takes names of columns, not {type(name).__name__}")
                if name not in kinds:
                    raise ValueError(
                        f"{argument}= names {name!r}, which is not a column: there are {', '.join(df.columns)}"
                    )
        for name in names:
            if not can_be_tensor(kinds[name]):
                raise TypeError(
                    f"inputs= names {name!r}, which is of type {kinds[name].simpleString()} and can't be a tensor; "
                    "cast it, or select what is in it as columns"
                )
        for name in keys:
            if not (is_vector(kinds[name]) or can_travel(kinds[name])):
                raise TypeError(
                    f"keys= names {name!r}, which is of type {kinds[name].simpleString()} and can't go to a model's "
                    "process; cast it"
                )
        if len(set(names)) < len(names):
            raise ValueError(f"inputs= names a column twice: {', '.join(names)}")
        columns = [_column(df, name, kinds[name]) for name in dict.fromkeys([*names, *keys])]
        single = inputs if isinstance(inputs, str) else names
        return Inputs(single, list(keys), columns, {name: kinds[name] for name in names})

    def check_standing(self, **given: Any) -> None:
        """Raises `ValueError` where `nulls` or `pad` names a column for which it can't stand, or `pad` is no number."""
        for argument, value in given.items():
            by_name = value if isinstance(value, Mapping) else {}
            for name in by_name:
                if name not in self.kinds:
                    raise ValueError(
                        f"{argument}= names {name!r}, which is not one of inputs=: {', '.join(self.kinds)}"
                    )
                if argument == "nulls" and is_text(self.kinds[name]):
                    raise ValueError(f"nulls= names {name!r}, whose nulls are None in a list")
                if argument == "pad" and not has_arrays(self.kinds[name]):
                    raise ValueError(f"pad= names {name!r}, which has no arrays")
            for one in by_name.values() if by_name else [value]:
                if argument == "pad" and isinstance(one, str):
                    raise ValueError(f"pad={one!r} is not a number to pad arrays with")


class Outputs(NamedTuple):
    """What the model makes of each row."""

    schema: StructType

    @property
    def names(self) -> list[str]:
        return [str(name) for name in self.schema.names]

    @staticmethod
    def given(df: DataFrame, outputs: str | StructType | None) -> Outputs:
        """Raises `TypeError` and `ValueError` where they say no columns, or some that `df` has."""
        from pyspark.sql.types import StructType

        if outputs is None:
            raise TypeError(
                f"outputs= is missing: the names and Spark types of what the model makes, as {_EXAMPLE}"
            )
        if not isinstance(outputs, (str, StructType)):
            raise TypeError(f"outputs={outputs!r} is not a text of names and types, such as {_EXAMPLE}")
        schema = outputs if isinstance(outputs, StructType) else _read(outputs)
        if not schema.fields:
            raise ValueError(f"outputs={outputs!r} names no column, as {_EXAMPLE} does")
        has = {name.lower() for name in df.columns}
        for name in schema.names:
            if name.lower() in has or schema.names.count(name) > 1:
                raise ValueError(f"outputs= names {name!r}, which is there already; give it another name")
        return Outputs(schema)


def quoted(name: str) -> str:
    """A name as Spark's expressions have it."""
    return "`" + name.replace("`", "``") + "`"


def _read(text: str) -> StructType:
    from pyspark.sql.types import StructType, _parse_datatype_string

    try:
        read = _parse_datatype_string(text)
    except Exception as problem:  # Spark's parser's, of several classes
        reason = str(problem).strip().split("\n", 1)[0]
        raise ValueError(f"outputs={text!r} is not as {_EXAMPLE}: {reason}") from problem
    if not isinstance(read, StructType) or "struct<" not in read.simpleString() or " " not in text.strip():
        raise ValueError(f"outputs={text!r} has types and no names; say {_EXAMPLE}")
    return read


def _column(df: DataFrame, name: str, kind: Any) -> Column:
    column = df[quoted(name)]
    if is_vector(kind):
        from pyspark.ml.functions import vector_to_array

        return vector_to_array(column)
    return column
