"""What stands for nulls and behind short arrays, in batches of blocks and of streams. No Spark."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import phalanx
import pyarrow as pa
import pytest
from phalanx.feeding.source import StreamedDataSet
from phalanx.feeding.stream.feeder import Feeder
from phalanx.feeding.stream.source import StreamSource

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

Batches = Callable[..., list[dict[str, Any]]]
NAN = float("nan")


def of_blocks(table: pa.Table, **options: Any) -> list[dict[str, Any]]:
    """The batches of a table."""
    return list(phalanx.data(table).loader(**options))


@pytest.fixture(params=["blocks", "stream"])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batches]:
    """Gives the batches of a table, by either loader."""
    monkeypatch.setattr("phalanx.feeding.blocks.source.BLOCK_ROWS", 7)
    feeders: list[Feeder] = []

    def of_a_stream(table: pa.Table, **options: Any) -> list[dict[str, Any]]:
        feeders.append(Feeder(table.to_batches(max_chunksize=3), 1, "table"))
        return list(StreamedDataSet(StreamSource("table", feeders[-1].address)).loader(**options))

    yield of_blocks if request.param == "blocks" else of_a_stream
    for feeder in feeders:
        feeder.close()
    assert not any(thread.name == "phalanx-stream" for thread in threading.enumerate())


DAY = datetime.date(1970, 1, 3)
NOW = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
WITH_NULLS = pa.table(
    {
        "day": pa.array([DAY, None], pa.date32()),
        "at": pa.array([NOW, None], pa.timestamp("us", "UTC")),
        "span": pa.array([datetime.timedelta(seconds=2), None], pa.duration("us")),
        "price": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(38, 2)),
        "x": pa.array([0.5, None], pa.float32()),
        "i": pa.array([3, None], pa.int8()),
        "flag": pa.array([True, None]),
        "days": pa.array([[DAY, DAY], [None, DAY]], pa.list_(pa.date32())),
        "prices": pa.array([[decimal.Decimal(1)], [None]], pa.list_(pa.decimal128(10, 2), 1)),
    }
)
VALUES = {
    "day": [2],
    "at": [1_000_000],
    "span": [2_000_000],
    "price": [1.25],
    "x": [0.5],
    "i": [3],
    "flag": [True],
    "days": [[2, 2]],
    "prices": [[1.0]],
}


def test_a_null_is_filled_in_the_tensors_type(batches: Batches) -> None:
    (batch,) = batches(WITH_NULLS, batch_size=2, nulls=0)
    filled = {name: [0] for name in VALUES} | {"days": [[0, 2]], "prices": [[0.0]]}
    assert {name: values.tolist() for name, values in batch.items()} == {
        name: VALUES[name] + filled[name] for name in VALUES
    }
    kinds = {
        "day": torch.int32,
        "at": torch.int64,
        "price": torch.float64,
        "flag": torch.bool,
        "i": torch.int8,
    }
    assert {name: batch[name].dtype for name in kinds} == kinds
    (batch,) = batches(WITH_NULLS.select(["price", "prices", "x"]), batch_size=2, nulls=NAN)
    assert [math.isnan(values[1]) for values in (batch["price"], batch["prices"], batch["x"])] == [True] * 3


def test_a_null_is_filled_with_a_value_of_the_columns_own_type(batches: Batches) -> None:
    for name, value, number in [
        ("day", datetime.date(1970, 1, 8), 7),
        ("at", NOW + datetime.timedelta(seconds=1), 2_000_000),
        ("span", datetime.timedelta(microseconds=7), 7),
        ("price", decimal.Decimal("7.5"), 7.5),
        ("flag", True, True),
    ]:
        (batch,) = batches(WITH_NULLS.select([name]), batch_size=2, nulls=value)
        assert batch[name].tolist() == [*VALUES[name], number]


def test_nulls_and_pad_go_by_column(batches: Batches) -> None:
    table = WITH_NULLS.append_column("b", pa.array([[1, 2], [3]])).append_column("c", pa.array([[1], [2, 3]]))
    some = table.select(["day", "price", "days", "b", "c"])
    nulls: dict[str, Any] = {"day": -1, "price": NAN, "days": 5}
    (batch,) = batches(some, batch_size=2, nulls=nulls, pad={"b": 0, "c": "list"})
    assert (batch["day"].tolist(), batch["days"].tolist()) == ([2, -1], [[2, 2], [5, 2]])
    assert math.isnan(batch["price"][1])
    assert batch["b"].tolist() == [[1, 2], [3, 0]]
    assert [row.tolist() for row in batch["c"]] == [[1], [2, 3]]
    (batch,) = batches(some, batch_size=2, nulls=nulls, pad={"b": "jagged", "c": -1})
    assert [row.tolist() for row in batch["b"].unbind()] == [[1, 2], [3]]
    assert batch["c"].tolist() == [[1, -1], [2, 3]]


def test_a_column_that_is_not_named_is_as_by_default(batches: Batches) -> None:
    with pytest.raises(ValueError, match="the column 'i' of the data set 'table' has 1 nulls"):
        batches(WITH_NULLS.select(["day", "i"]), batch_size=2, nulls={"day": 0})
    (batch,) = batches(WITH_NULLS.select(["day", "i"]), batch_size=2, nulls={"day": 0, "i": 1})
    assert batch["i"].tolist() == [3, 1]
    with pytest.raises(ValueError, match="nulls=300 doesn't fit the column 'i'"):
        batches(WITH_NULLS.select(["day", "i"]), batch_size=2, nulls={"day": 0, "i": 300})
    table = pa.table({"b": [[1], [2, 3]], "c": [[1, 1], [2, 3]]})
    (batch,) = batches(table, batch_size=2, pad={"b": 0})
    assert (batch["b"].tolist(), batch["c"].tolist()) == ([[1, 0], [2, 3]], [[1, 1], [2, 3]])


def test_arrays_of_different_lengths_that_pad_does_not_name_are_lists_or_in_a_stream_refused() -> None:
    table = pa.table({"b": [[1], [2, 3]], "c": [[1], [2, 3]]})
    (batch,) = of_blocks(table, batch_size=2, pad={"c": 0})
    assert [row.tolist() for row in batch["b"]] == [[1], [2, 3]]
    with contextlib.closing(Feeder(table.to_batches(), 1, "table")) as feeder:
        loader = StreamedDataSet(StreamSource("table", feeder.address)).loader(batch_size=2, pad={"c": 0})
        with pytest.raises(
            ValueError, match="the column 'b' of the data set 'table' has arrays of 1 and of 2"
        ):
            list(loader)


def test_a_name_that_is_no_column_and_a_value_that_can_not_stand_are_refused(batches: Batches) -> None:
    table = pa.table({"i": [1, None], "text": ["a", None], "b": [[1], [2, 3]]})
    for options, problem in [
        (
            {"nulls": {"i": 0, "j": 0}},
            "nulls= names 'j', which is not a column of the data set 'table': it has 'i', ",
        ),
        (
            {"nulls": {"i": 0, "text": "x"}, "pad": 0},
            "nulls= names the column 'text' .*, whose nulls are None in a list",
        ),
        (
            {"nulls": 0, "pad": {"b": 0, "a": 0}},
            "pad= names 'a', which is not a column of the data set 'table'",
        ),
        ({"nulls": 0, "pad": {"b": 0, "i": 0}}, "pad= names the column 'i' .*, which has no arrays"),
        ({"nulls": 1.5, "pad": 0}, "nulls=1.5 doesn't fit the column 'i'"),
        ({"nulls": None, "pad": 0}, "nulls=None doesn't fit the column 'i'"),
        ({"nulls": 0, "pad": 1.5}, "pad=1.5 doesn't fit the column 'b'"),
        ({"nulls": 0, "pad": {"b": "jaged"}}, "pad='jaged' doesn't fit the column 'b'"),
    ]:
        with pytest.raises(ValueError, match=problem):
            batches(table, batch_size=2, **options)


def test_names_are_looked_at_before_the_first_batch() -> None:
    data = phalanx.data(pa.table({"i": [1, None], "b": [[1], [2, 3]]}))
    for options, problem in [
        ({"nulls": {"j": 0}}, "nulls= names 'j'"),
        ({"nulls": {"i": "x"}}, "nulls='x' doesn't fit"),
        ({"nulls": 0, "pad": "x"}, "pad='x' doesn't fit"),
    ]:
        with pytest.raises(ValueError, match=problem):
            data.loader(batch_size=1, **options)


@pytest.mark.parametrize("pad", ["list", "jagged", 0, {"v": "list"}])
def test_arrays_of_a_fixed_size_become_what_pad_says(batches: Batches, pad: Any) -> None:
    rows = [[i, -i] for i in range(9)]
    table = pa.table({"v": pa.array([[9, 9], *rows], pa.list_(pa.int16(), 2))}).slice(1)
    found = batches(table, batch_size=3, pad=pad)
    assert [row.tolist() for batch in found for row in batch["v"]] == rows
    if pad not in ("jagged", 0):
        assert all(isinstance(batch["v"], list) for batch in found)
    table = pa.table({"v": pa.array([[None, 1], [2, None]], pa.list_(pa.float32(), 2))})
    (batch,) = batches(table, batch_size=2, nulls=0, pad=pad)
    assert [row.tolist() for row in batch["v"]] == [[0, 1], [2, 0]]
