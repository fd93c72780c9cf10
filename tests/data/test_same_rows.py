"""The rows of a DataFrame are the same ones in the same order, whichever way Spark computes them again."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import TrainingError
from phalanx.feeding.blocks.identity import Identity, difference
from phalanx.feeding.blocks.index import Index
from phalanx.feeding.blocks.query_plan import QueryPlan
from phalanx.feeding.blocks.row_hash import HASH, DataRows
from phalanx.feeding.blocks.source import MappedBlocks
from phalanx.feeding.preparation import Preparation
from phalanx.feeding.source import DataSet
from support import sessions
from support.own_session import in_session
from support.tiers import whole

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module", params=["python", "jvm"])
def spark(request: pytest.FixtureRequest) -> Any:
    """A classic session with one core, whose blocks are written by Python workers, or by executors' JVMs."""
    return sessions.one_core({} if request.param == "python" else phalanx.spark_conf())


def hashes(frame: Any) -> list[int]:
    return [row[HASH] for row in DataRows.of(frame).hashed().frame.collect()]


def test_each_difference_of_a_row_is_one_of_its_hash(spark: Any) -> None:
    rows = [
        "1 as a, 2 as b, null as c",
        "1 as a, null as b, 2 as c",
        "null as a, 1 as b, 2 as c",
        "1 as a, 2 as b, 0 as c",
        "2 as a, 1 as b, null as c",
    ]
    assert len(set(itertools.chain.from_iterable(hashes(spark.sql(f"select {row}")) for row in rows))) == 5
    for kind, values in {
        "array<int>": ["array(1, 2)", "array(2, 1)", "array(1)", "null"],
        "map<string, int>": ["map('a', 1, 'b', 2)", "map('a', 2, 'b', 1)", "map('a', null)", "map()", "null"],
        "array<map<int, int>>": [
            "array(map(1, 2))",
            "array(map(1, 3))",
            "array(map(1, 2), map(1, 2))",
            "null",
        ],
        "struct<m: map<int, map<int, int>>>": [
            "named_struct('m', map(1, map(1, 1)))",
            "named_struct('m', map(1, map(1, 2)))",
            "null",
        ],
    }.items():
        found = [hashes(spark.sql(f"select cast({value} as {kind}) as x"))[0] for value in values]
        assert len(set(found)) == len(values), f"FEED-64: {kind} {found}"
    same = hashes(spark.sql("select map('a', 1, 'b', 2) as m union all select map('b', 2, 'a', 1) as m"))
    assert same[0] == same[1], "FEED-64"


def test_columns_that_differ_in_their_case_alone_are_told_apart(spark: Any) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    frame = spark.range(3).select(F.col("id").alias("a"), F.array(F.col("id") / 2).alias("b"))
    frame = frame.select("a", array_to_vector("b").alias("v"), (F.col("a") + 10).alias("A"))
    index = prepared(spark, frame)
    (batch,) = DataSet(MappedBlocks(index)).loader(batch_size=3, rank=0, world_size=1)
    assert (batch["a"].tolist(), batch["A"].tolist()) == ([0, 1, 2], [10, 11, 12])
    assert batch["v"].tolist() == [[0.0], [0.5], [1.0]]
    with pytest.raises(ValueError, match="differ only in upper and lower case"):
        Preparation(spark, {"train": phalanx.streamed(frame)}, local_mode=False)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert Preparation(spark, {"train": phalanx.streamed(frame)}, local_mode=False).streamed is not None
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def prepared(spark: Any, frame: Any, **options: Any) -> Index:
    """The index; its blocks stay until the session's end."""
    return Index.read(Preparation(spark, {"train": frame}, local_mode=True, **options).run()["train"])


def test_what_spark_says_of_a_query_tells_whether_its_order_is_settled(spark: Any) -> None:
    from pyspark.sql import functions as F

    numbers = spark.range(0, 20, 1, 4)
    shuffled = numbers.repartition(3)
    pairs = spark.createDataFrame(spark.sparkContext.parallelize([(1, "a"), (2, "b")]).repartition(2))
    for frame, is_sorted, is_settled in [
        (numbers, False, True),
        (numbers.selectExpr("id", "'Exchange' as word"), False, True),
        (spark.createDataFrame([(1, "a")], "i int, s string"), False, True),
        (spark.createDataFrame(spark.sparkContext.parallelize([(1, "a"), (2, "b")])), False, True),
        (numbers.join(F.broadcast(numbers), "id"), False, True),
        (shuffled, False, False),
        (shuffled.filter("id > 3"), False, False),
        (numbers.groupBy((F.col("id") % 3).alias("k")).count(), False, False),
        (pairs, False, False),
        (pairs.cache(), False, False),
        (shuffled.orderBy(F.rand(1)), True, False),
        (shuffled.sortWithinPartitions("id"), True, False),
        (shuffled.orderBy("id").filter("id > 3").selectExpr("id + 1 as i").limit(5), True, False),
        (shuffled.orderBy("id").groupBy("id").count(), False, False),
    ]:
        plan = QueryPlan(DataRows.of(frame).frame)
        assert (plan.is_sorted, plan.is_settled) == (is_sorted, is_settled), f"FEED-65: {frame}"
    cached = shuffled.cache()
    try:
        assert not QueryPlan(cached.filter("id > 3")).is_settled, "FEED-65"
    finally:
        cached.unpersist()


def test_one_query_has_one_digest_and_another_one_has_another(spark: Any) -> None:
    def query(least: int) -> Any:
        return spark.range(0, 20).selectExpr("id", "id * 2 as twice").filter(f"id > {least}")

    digests = [QueryPlan(query(least)).digest() for least in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2], "FEED-69"


def order_of(index: Index) -> list[int]:
    loader = DataSet(MappedBlocks(index)).loader(batch_size=1, rank=0, world_size=1)
    return [batch["id"].item() for batch in loader]


def test_rows_of_a_shuffle_are_the_same_wherever_they_are_cut(spark: Any) -> None:
    from pyspark.sql import functions as F

    rows = spark.range(0, 500, 1, 4)
    keyed = rows.withColumn("k", F.col("id") % 7)
    for frame in (
        rows.repartition(3),
        keyed.groupBy("k").agg(F.max("id").alias("id")),
        keyed.hint("merge").join(rows.hint("merge"), "id"),
    ):
        first, again = prepared(spark, frame), prepared(spark, frame)
        assert Identity.read(first.identity) is not None
        assert first.identity == again.identity, "FEED-62, FEED-68"
        assert order_of(first) == order_of(again), "FEED-68"
    ordered = prepared(spark, rows.orderBy(F.desc("id")))
    assert order_of(ordered) == list(range(499, -1, -1)), "the user's own order stays"
    settled = prepared(spark, rows)
    assert order_of(settled) == list(range(500)), "and so does one that is the same each time"
    both = [prepared(spark, rows.repartition(n), order="content") for n in (2, 5)]
    assert order_of(both[0]) == order_of(both[1]), "content depends on no partitioning"
    assert both[0].identity == both[1].identity
    assert prepared(spark, rows.repartition(2), order="computed").identity != both[0].identity


def test_a_state_goes_on_over_other_blocks_of_the_same_rows(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.feeding.blocks import write as write_blocks

    frame = spark.range(0, 400, 1, 3).repartition(4)

    def loader(index: Index) -> Any:
        source = MappedBlocks(index)
        return DataSet(source).loader(batch_size=10, shuffle=True, seed=3, rank=0, world_size=1)

    first = loader(prepared(spark, frame))
    whole = [batch["id"].tolist() for batch in first]
    steps = iter(first)
    first.set_epoch(0)
    taken = [next(steps)["id"].tolist() for _ in range(7)]
    state = json.loads(json.dumps(first.state_dict()))
    monkeypatch.setattr(write_blocks, "BLOCK_ROWS", 17)
    second = loader(prepared(spark, frame))
    assert second._source.rows != first._source.rows
    second.load_state_dict({**state, "epoch": 0})
    rest = [batch["id"].tolist() for batch in second]
    del taken
    assert rest == whole[state["row"] // 10 :], "FEED-23, PLAN-9"


PREPARED = """
    from phalanx.feeding.preparation import Preparation
    from pyspark.sql import functions as F

    def told(frame, order="auto"):
        one = Preparation(spark, {"train": frame}, local_mode=True, order=order)
        try:
            return one.run()["train"]["identity"]
        finally:
            one.remove()

    rows = spark.range(0, 4000, 1, 4)
    grouped = rows.groupBy((F.col("id") % 700).alias("k")).agg(F.max("id").alias("most"))
    answer = {
        "repartition": told(rows.repartition(5)),
        "join": told(rows.hint("merge").join(rows.hint("merge"), "id")),
        "groupBy": told(grouped),
        "sorted": told(grouped.orderBy(F.col("most") * 1.5)),
        "by content": told(grouped, "content"),
    }
"""


@whole("an application of its own")
@pytest.mark.parametrize(
    "where",
    [
        "another application",
        pytest.param("other cores", marks=whole("another plan")),
        pytest.param("no adaptive execution", marks=whole("another plan")),
        pytest.param("Python workers", marks=whole("another writer")),
        pytest.param("Spark Connect", marks=whole("another writer")),
    ],
)
def test_another_application_has_the_same_rows_or_says_that_their_order_differs(where: str) -> None:
    jar, adaptive = phalanx.spark_conf(), "spark.sql.adaptive.enabled"
    first = in_session("local[2]", PREPARED, conf=jar)
    other = {
        "another application": lambda: in_session("local[2]", PREPARED, conf=jar),
        "other cores": lambda: in_session("local[3]", PREPARED, conf=jar),
        "no adaptive execution": lambda: in_session("local[2]", PREPARED, conf={**jar, adaptive: "false"}),
        "Python workers": lambda: in_session("local[2]", PREPARED),
        "Spark Connect": lambda: in_session("local[2]", PREPARED, connect=True),
    }[where]()
    same = {name for name, identity in other.items() if identity == first[name]}
    assert {"repartition", "sorted", "by content"} <= same, "FEED-62, FEED-68"
    if where not in ("other cores", "no adaptive execution"):  # by which Spark puts partitions together
        assert same == set(first), "FEED-62, FEED-68"
    for name in set(first) - same:
        assert "the same rows in another order" in difference(first[name], other[name]), "FEED-63"


@pytest.mark.parametrize("source", ["settled", "shuffled"])
def test_only_what_is_gone_is_written_again(spark: Any, source: str) -> None:
    rows = spark.range(0, 300, 1, 5)
    frame = rows if source == "settled" else rows.repartition(5)
    one = Preparation(spark, {"train": frame}, local_mode=True, restarts=True)
    try:
        first = Index.read(one.run()["train"])
        lost, order = first.files[2], order_of(first)
        Path(lost).unlink()
        second = Index.read(one.again()["train"])
        kept = [file for file in first.files if file != lost]
        assert [file for file in second.files if file in kept] == kept, "FEED-67"
        assert len(second.files) == len(first.files)
        assert (second.identity, second.even_rows) == (first.identity, first.even_rows), "FEED-34"
        assert order_of(second) == order
        jobs = [weakref.ref(written._job) for written in one._sets.values()]
        assert all(job() is not None for job in jobs)
    finally:
        one.remove()
    gc.collect()
    assert [job() for job in jobs] == [None], "what Spark has shuffled goes with the run"


def test_the_right_sentence_is_said_of_what_differs(spark: Any, tmp_path: Path) -> None:
    changed = tmp_path / "changed"

    def changing(how: str) -> Any:
        def rows(batches: Any) -> Any:
            import pyarrow as pa

            for batch in batches:
                ids = batch.column(0).to_pylist()
                if changed.exists():
                    ids = {"fewer": ids[1:], "turned": ids[::-1], "others": [i + 1000 for i in ids]}[how]
                yield pa.RecordBatch.from_pydict({"id": ids})

        return rows

    for how, said in {
        "fewer": r"it has other rows \(40 before, 36 now\)",
        "turned": "it has the same rows in another order",
        "others": r"it has the same number of rows \(40\) but other values: sums of floats",
    }.items():
        frame = spark.range(0, 40, 1, 4).mapInArrow(changing(how), "id long")
        one = Preparation(spark, {"train": frame}, local_mode=True, restarts=True)
        try:
            for file in Index.read(one.run()["train"]).files:
                Path(file).unlink()
            changed.touch()
            with pytest.raises(TrainingError, match=f"'train' has changed.*{said}"):
                one.again()  # FEED-34, FEED-63
        finally:
            changed.unlink()
            one.remove()
    assert "its blocks are others" in difference("9 rows, 0000abcd", "9 rows, 0000abce")
