"""The data sets that a run is given: what they may be, and as which DataFrames they are taken.

FEED-31 (refused-first): data that can't become tensors, or can't be read to its end, is refused before any job
starts, in a sentence that names the data set and the column.
FEED-36 (streamed-once): a run has one `streamed` data set at most, on executors, and never starts its ranks again. It
has no blocks: it is the input of the run's own stage.
FEED-70 (one-stage): rows that are a stage's input need one stage for all tasks, so a gang of tasks has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..spark.session import check_running
from .replicated import Replicated
from .spark_types import can_travel, is_vector
from .stored.place import DataStore
from .stored.stored import Stored
from .stream.streamed import Streamed


def is_data(argument: object) -> bool:
    """Whether an argument `data` is Phalanx's and not the training function's: it has DataFrames, which can't be sent
    to a function."""
    return isinstance(argument, Mapping) and any(map(_is_ours, argument.values()))


def is_table(argument: object) -> bool:
    """Whether an argument is rows that are not Spark's: of pandas, polars, pyarrow, numpy or torch, or such by name."""
    if isinstance(argument, Mapping):
        return any(map(is_table, argument.values()))
    return any(hasattr(argument, name) for name in ("columns", "column_names", "shape"))


def check_data(data: Mapping[str, Any]) -> None:
    """Raises `TypeError` for what is no data set of Spark's, by its name."""
    if not isinstance(data, Mapping):
        raise TypeError(f"data sets have to be a mapping of names to DataFrames, not {type(data).__name__}")
    for name, value in data.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a data set has to be a str, not {type(name).__name__}")
        if not _is_ours(value):
            raise TypeError(f"the data set {name!r} has to be a Spark DataFrame, not {type(value).__name__}")


def check_gang(gang: str, sets: Mapping[str, Any], *, has_rows: bool) -> None:
    """Raises `RuntimeError` where a gang of tasks can't have its data, with what to do. FEED-70"""
    if gang != "tasks":
        return
    do = "or run it with gang='barrier', for which spark.dynamicAllocation.enabled has to be false"
    if has_rows:
        raise RuntimeError(
            "_train_on_dataframe needs one stage for all tasks, and this run's tasks are a Spark job each "
            f"(spark.phalanx.gang); give the DataFrame to run(data=...) as phalanx.stored, {do}"
        )
    for name, value in sets.items():
        if isinstance(value, Streamed):
            raise RuntimeError(
                f"the data set {name!r} is streamed, which needs one stage for all tasks, and this run's tasks are a "
                f"Spark job each (spark.phalanx.gang); pass the DataFrame without streamed(), {do}"
            )


def _is_ours(value: object) -> bool:
    return isinstance(value, (Replicated, Stored, Streamed)) or _is_frame(value)


def _is_frame(value: object) -> bool:
    return type(value).__module__.startswith("pyspark.") and hasattr(value, "mapInArrow")


class GivenFrame(NamedTuple):
    """A data set as a run is given it."""

    frame: Any
    whole: bool
    """Whether every rank takes all rows."""
    store: DataStore | None

    @property
    def columns(self) -> list[list[str]]:
        return [[field.name, field.dataType.simpleString()] for field in self.frame.schema.fields]


class StreamedFrame(NamedTuple):
    """A streamed data set as a run is given it."""

    name: str
    frame: Any


def streamed_of(data: Mapping[str, Any], *, local_mode: bool) -> StreamedFrame | None:
    """FEED-36."""
    names = [name for name, value in data.items() if isinstance(value, Streamed)]
    if not names:
        return None
    if len(names) > 1:
        raise ValueError(
            f"the data sets {names[0]!r} and {names[1]!r} are both streamed, but a run can stream only one; "
            "pass the smaller one without streamed()"
        )
    (name,) = names
    if local_mode:
        raise ValueError(
            f"the data set {name!r} is streamed, so its rows come from the tasks in which the ranks run, and in local "
            "mode there are none; use local_mode=False, or pass the DataFrame without streamed()"
        )
    given = data[name].data
    if isinstance(given, (Replicated, Stored, Streamed)):
        raise TypeError(_refused_inside(name, given, "streamed"))
    frame = readable(name, given)
    are_told_apart = frame.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
    if not are_told_apart and len({column.lower() for column in frame.columns}) < len(frame.columns):
        raise ValueError(
            f"the data set {name!r} is streamed, but the names of some columns differ only in upper and "
            "lower case, which Spark can't tell apart here; rename them"
        )
    return StreamedFrame(name, frame)


def _refused_inside(name: str, inner: Any, outer: str) -> str:
    return (
        f"the data set {name!r} is {outer} and {type(inner).__name__.lower()} at once, but each streamed row "
        "comes once, to one rank, and is not kept; use one of the two"
    )


def given_of(name: str, value: Any) -> GivenFrame:
    whole = isinstance(value, Replicated)
    kept = value.data if isinstance(value, Replicated) else value
    inner = kept.data if isinstance(kept, Stored) else kept
    if isinstance(inner, Streamed):
        raise TypeError(_refused_inside(name, inner, "stored" if isinstance(kept, Stored) else "replicated"))
    frame = readable(name, kept.data if isinstance(kept, Stored) else kept)
    return GivenFrame(frame, whole, DataStore(kept.uri) if isinstance(kept, Stored) else None)


def readable(name: str, frame: Any) -> Any:
    """The DataFrame, with vectors as arrays.

    Raises as `Preparation`, and `RuntimeError` where its session was stopped.
    """
    called = f"the data set {name!r}"
    if not _is_frame(frame):
        raise TypeError(f"{called} has to be a Spark DataFrame, not {type(frame).__name__}")
    check_running(frame.sparkSession, called)
    if frame.isStreaming:
        raise ValueError(
            f"{called} is a streaming DataFrame, which has no end, but an epoch needs one; write it to a "
            "table and read that, or take its micro-batches one by one (foreachBatch)"
        )
    names = [field.name for field in frame.schema.fields]
    if not names:
        raise ValueError(f"{called} has no columns")
    for column in names:
        if names.count(column) > 1:
            raise ValueError(f"{called} has several columns {column!r}; rename them")
    vectors = []
    for field in frame.schema.fields:
        if is_vector(field.dataType):
            vectors.append(field.name)
        elif not can_travel(field.dataType):
            raise TypeError(
                f"the column {field.name!r} of {called} is of type {field.dataType.simpleString()}, which can't be a "
                "tensor; cast it or leave it out (df.select)"
            )
    if not vectors:
        return frame
    from pyspark.ml.functions import vector_to_array

    # Names may differ only in upper and lower case, so only places tell columns apart.
    places = [f"c{at}" for at in range(len(names))]
    placed = frame.toDF(*places)
    return placed.select(
        *(
            vector_to_array(placed[place]).alias(place) if column in vectors else placed[place]
            for place, column in zip(places, names, strict=True)
        )
    ).toDF(*names)
