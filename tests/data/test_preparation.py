"""Preparing data sets over a session of one core: what is refused before, what is written, what is removed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import phalanx
import pytest
from phalanx import TrainingError
from phalanx.feeding import preparation
from phalanx.feeding.blocks.index import Index
from phalanx.feeding.blocks.source import MappedBlocks
from phalanx.feeding.given import is_data
from phalanx.feeding.preparation import Preparation
from phalanx.feeding.source import DataSet
from phalanx.plumbing.by_value import by_value
from support import sessions
from support.programs import eventually

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module", params=["python", "jvm"])
def spark(request: pytest.FixtureRequest) -> Any:
    """A classic session with one core, whose blocks are written by Python workers, or by executors' JVMs."""
    return sessions.one_core({} if request.param == "python" else phalanx.spark_conf())


@pytest.fixture
def prepared(spark: Any) -> Iterator[Any]:
    """Prepares a DataFrame, and removes it after the test."""
    made = []

    def prepare(frame: Any) -> Index:
        one = Preparation(spark, {"train": frame}, local_mode=True)
        made.append(one)
        return Index.read(one.run()["train"])

    yield prepare
    for one in made:
        one.remove()


def batches(index: Index, **options: Any) -> list[Any]:
    return list(DataSet(MappedBlocks(index)).loader(rank=0, world_size=1, **options))


def test_types_and_bits_arrive_as_they_are(spark: Any, prepared: Any, request: pytest.FixtureRequest) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    spark.conf.set("spark.sql.timeType.enabled", "true")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.timeType.enabled"))
    frame = spark.range(0, 300, 1, 3).select(
        F.col("id"),
        (F.col("id") / F.lit(3)).cast("float").alias("f32"),
        (F.col("id") / F.lit(3)).alias("f64"),
        (F.col("id") % 100).cast("tinyint").alias("i8"),
        (F.col("id") % 2 == 0).alias("flag"),
        F.date_add(F.lit("1970-01-01").cast("date"), F.col("id").cast("int")).alias("day"),
        F.timestamp_micros("id").alias("time"),
        F.timestamp_micros("id").cast("timestamp_ntz").alias("ntz"),
        F.expr("make_time(1, 2, cast(id % 60 as decimal(8,6)))").alias("clock"),
        (F.col("id") / 4).cast("decimal(12,3)").alias("price"),
        F.array(F.col("id").cast("float"), F.lit(1.5).cast("float")).alias("pair"),
        array_to_vector(F.array(F.col("id").cast("double"), F.lit(0.0))).alias("vector"),
        F.col("id").cast("string").alias("text"),
        F.unhex(F.lit("00ff00")).alias("raw"),
        F.struct("id").alias("s"),
    )
    import torch

    index = prepared(frame)
    with pytest.raises(TypeError, match="column 's' of the data set 'train' is of type struct"):
        batches(index, batch_size=300)
    (batch,) = batches(prepared(frame.drop("s")), batch_size=300, shuffle=True)
    at = batch["id"].tolist()
    assert sorted(at) == list(range(300))
    third = torch.tensor(at, dtype=torch.float64) / 3
    for name, expected in {
        "f32": third.float(),
        "f64": third,
        "i8": (torch.tensor(at) % 100).to(torch.int8),
        "flag": torch.tensor(at) % 2 == 0,
        "day": torch.tensor(at, dtype=torch.int32),
        "time": torch.tensor(at),
        "clock": 3_720_000_000_000 + torch.tensor(at) % 60 * 1_000_000_000,
        "price": torch.tensor(at, dtype=torch.float64) / 4,
        "pair": torch.tensor([[i, 1.5] for i in at], dtype=torch.float32),
        "vector": torch.tensor([[i, 0.0] for i in at], dtype=torch.float64),
    }.items():
        assert batch[name].dtype == expected.dtype, name
        assert torch.equal(batch[name], expected), name
    assert batch["ntz"].dtype == torch.int64
    assert batch["text"] == [str(i) for i in at]
    assert batch["raw"] == [b"\x00\xff\x00"] * 300


def test_the_same_data_is_the_same_blocks_and_empty_partitions_have_none(spark: Any, prepared: Any) -> None:
    frame = spark.range(0, 40, 1, 4).filter("id >= 10 and id < 20 or id = 35").repartition(16, "id")
    first, again = prepared(frame), prepared(frame)
    assert [block[1:] for block in first.blocks] == [block[1:] for block in again.blocks]
    assert first.files != again.files
    assert len(first.files) < 12
    assert sorted(i for batch in batches(first, batch_size=11) for i in batch["id"].tolist()) == [
        *range(10, 20),
        35,
    ]
    nothing = prepared(spark.range(0))
    assert (nothing.hosts, nothing.files, batches(nothing, batch_size=2)) == ([], [], [])


def test_blocks_go_with_the_run_whoever_removes_them(
    spark: Any, prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for far in (False, True):
        one = Preparation(spark, {"a": spark.range(5), "b": spark.range(3)}, local_mode=True)
        indexes = one.run()
        folders = {os.path.dirname(file) for index in indexes.values() for file in index["files"]}
        assert all(map(os.path.isdir, folders))
        if far:  # then a task does it
            monkeypatch.setattr(preparation.socket, "gethostname", lambda: "elsewhere")
        one.remove()
        assert not any(map(os.path.exists, folders)), "FEED-32"
        one.remove()


def test_blocks_that_are_gone_are_computed_again_and_have_to_be_the_same(spark: Any, tmp_path: Path) -> None:
    def changing(batches: Any) -> Any:
        for batch in batches:
            yield batch.slice(0, batch.num_rows - changed.exists())

    changed = tmp_path / "changed"
    frame = spark.range(9).mapInArrow(changing, "id long")
    one = Preparation(spark, {"train": frame}, local_mode=True, restarts=True)
    first = one.run()
    assert one.again() == first
    Path(first["train"]["files"][0]).unlink()
    second = one.again()
    assert second != first
    assert Index.read(second["train"]).identity == Index.read(first["train"]).identity
    Path(second["train"]["files"][0]).unlink()
    changed.touch()
    with pytest.raises(TrainingError, match="'train' has changed since the run began"):
        one.again()  # FEED-34
    one.remove()
    assert not any(Path(index["train"]["files"][0]).parent.exists() for index in (first, second)), "FEED-32"


def test_data_that_can_not_be_fed_is_refused_before_any_job(spark: Any) -> None:
    def refused(frame: Any) -> str:
        with pytest.raises((TypeError, ValueError)) as caught:
            Preparation(spark, {"train": frame}, local_mode=True)
        return str(caught.value)

    spark.sparkContext.setJobGroup("refused", "refused")
    try:
        interval = spark.sql("select 1 as x, interval '1' month as i")
        assert "the column 'i' of the data set 'train' is of type interval month, which can't" in refused(
            interval
        )
        nested = spark.sql("select array(named_struct('v', make_interval(1))) as n")
        assert "the column 'n' of the data set 'train'" in refused(nested), "FEED-31"
        assert "is a streaming DataFrame, which has no end" in refused(
            spark.readStream.format("rate").load()
        ), "FEED-31"
        assert "has several columns 'x'" in refused(spark.sql("select 1 as x, 2 as x"))
        assert "has no columns" in refused(spark.range(1).select())
        assert "has to be a Spark DataFrame, not list" in refused([1])
        assert spark.sparkContext.statusTracker().getJobIdsForGroup("refused") == [], "FEED-31"
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
        spark.sparkContext.setLocalProperty("spark.job.description", None)


def test_a_session_that_encrypts_its_disks_is_refused(spark: Any) -> None:
    class Encrypting:
        conf = SimpleNamespace(get=lambda key, _: "true" if key == "spark.io.encryption.enabled" else None)

    with pytest.raises(RuntimeError, match="blocks of data sets are not encrypted"):
        Preparation(cast(Any, Encrypting), {"train": spark.range(1)}, local_mode=True)


def test_an_argument_is_phalanxs_only_where_it_has_dataframes(spark: Any) -> None:
    assert is_data({"train": spark.range(1)})
    assert is_data({"eval": phalanx.replicated(spark.range(1))})
    for other in (None, {}, {"lr": 0.1}, spark.range(1), [spark.range(1)]):
        assert not is_data(other)


def test_blocks_and_ranks_on_different_hosts_are_refused(
    spark: Any, prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = socket.gethostname()
    monkeypatch.setattr(preparation.socket, "gethostname", lambda: "driver")
    with pytest.raises(
        RuntimeError, match=f"'train' are on {here}, and in local mode the ranks are on driver"
    ):
        prepared(spark.range(3))  # FEED-33


def test_what_spark_can_not_compute_is_the_cause_and_leaves_nothing(spark: Any, prepared: Any) -> None:
    local = Path(prepared(spark.range(1)).files[0]).parent.parent
    broken = spark.range(0, 6, 1, 3).selectExpr("if(id < 5, id, raise_error('no such number')) as id")
    one = Preparation(spark, {"train": broken}, local_mode=True)
    with pytest.raises(TrainingError, match=r"the data sets can't be prepared: .*no such number") as caught:
        one.run()
    assert caught.value.kind == "start"
    assert caught.value.__cause__ is not None
    assert list((local / one._tag).iterdir()) != [], "two partitions were written"
    one.remove()
    assert not (local / one._tag).exists(), "FEED-32"


def test_executors_need_no_phalanx(tmp_path: Path) -> None:
    from phalanx.feeding.blocks import write as write_blocks
    from pyspark import cloudpickle

    with by_value(write_blocks):
        packed = cloudpickle.dumps(write_blocks.writer(["x"], "folder", 1 << 20, 1 << 20))
    script = """
import os, pickle, sys
sys.modules["phalanx"] = None
import pyarrow, pyspark
pyspark.TaskContext._taskContext = context = pyspark.TaskContext()
context._partitionId, context._taskAttemptId, context._localProperties = 3, 8, {}
write = pickle.load(sys.stdin.buffer)
(answer,) = write(iter([pyarrow.RecordBatch.from_pydict({"c0": [1, 2], "h": [3, 4]})]))
print(answer.to_pylist()[0]["path"], answer.to_pylist()[0]["rows"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=packed,
        capture_output=True,
        timeout=60,
        env={**os.environ, "SPARK_LOCAL_DIRS": f"/nowhere,{tmp_path}"},
    )
    assert done.stdout.decode() == f"{tmp_path}/folder/3-8 2\n", done.stderr.decode()


def test_runs_that_prepare_at_the_same_time_don_t_disturb_one_another(spark: Any, prepared: Any) -> None:
    # PLUMBING-1: who was done first took the modules off pyspark's list that the other's functions travel by
    met = threading.Barrier(2, timeout=60)
    raised: list[BaseException] = []

    def prepare(rows: int) -> None:
        met.wait()
        try:
            assert sum(block.rows for block in prepared(spark.range(rows)).blocks) == rows
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=prepare, args=(rows,)) for rows in (10, 2_000_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert raised == []


def test_a_cancel_ends_the_preparing(spark: Any, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def slow(batches: Any) -> Any:
        import time

        begun.touch()
        while True:
            time.sleep(0.05)
            yield from ()

    one = Preparation(spark, {"train": spark.range(1).mapInArrow(slow, "id long")}, local_mode=True)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            one.run()
        except TrainingError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    eventually("the job runs", 60, begun.exists)
    one.cancel()
    thread.join(30)
    assert [getattr(error, "kind", None) for error in raised] == ["cancelled"]
    # The session has its one core back.
    assert spark.range(7).count() == 7
