"""DataFrames that go from the running tasks to their ranks: every row once, equal steps, and nothing on a disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import TorchDistributor, TrainingError
from support.programs import eventually
from support.tiers import whole

pytestmark = [pytest.mark.timeout(180), pytest.mark.behaviour]

ROWS = 103


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No task and no rank has an end of a stream any more."""
    yield
    eventually("no stream is left", 10, lambda: "phalanx-stream-" not in Path("/proc/net/unix").read_text())


@pytest.fixture
def small_batches(spark: Any) -> Iterator[None]:
    """Spark gives 16 rows at a time."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "16")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def train(uneven: str) -> list[list[int]]:
    """The rows that count, step by step."""
    import phalanx

    batches = list(phalanx.data("train").loader(batch_size=8, uneven=uneven))
    assert all(len(batch["id"]) == 8 for batch in batches), "FEED-51"
    return [(batch["id"][batch["mask"]] if uneven == "pad" else batch["id"]).tolist() for batch in batches]


@pytest.mark.parametrize(
    "partitions",
    [pytest.param(1, marks=whole("fewer partitions")), 2, pytest.param(5, marks=whole("more partitions"))],
)
def test_every_row_comes_once_whatever_partitions_there_are(
    stage: Any, spark: Any, small_batches: None, partitions: int
) -> None:
    frame = spark.range(0, ROWS, 1, partitions)
    first, second = stage.start(train, "pad", data={"train": phalanx.streamed(frame)}).results(120)
    assert len(first) == len(second) == -(-max(sum(map(len, first)), sum(map(len, second))) // 8), "FEED-51"
    assert sorted(row for step in first + second for row in step) == list(range(ROWS)), "FEED-56"


@pytest.mark.classic  # there partitions are known
def test_partitions_that_are_put_together_from_others_are_shuffled_for_the_ranks(
    stage: Any, spark: Any, small_batches: None
) -> None:
    one, other = spark.range(0, 60, 1, 1), spark.range(60, ROWS, 1, 1)
    for frame in (spark.range(0, ROWS, 1, 6).coalesce(2), one.union(other)):
        first, second = stage.start(train, "pad", data={"train": phalanx.streamed(frame)}).results(120)
        assert sorted(row for step in first + second for row in step) == list(range(ROWS)), "FEED-56"
    # Of an RDD it can't be seen beforehand.
    pairs = spark.sparkContext.parallelize([(i,) for i in range(ROWS)], 6).coalesce(2)
    with pytest.raises(
        TrainingError,
        match=r"can't start all tasks of this DataFrame together.*repartition it \(df\.repartition\)",
    ):
        stage.run(train, "pad", data={"train": phalanx.streamed(spark.createDataFrame(pairs, "id long"))})


@whole("another number of ranks")
@pytest.mark.classic  # a client of Spark Connect doesn't know the partitions, and has them shuffled
def test_a_run_of_one_rank_and_uneven_partitions_have_equal_steps(
    stage: Any, spark: Any, small_batches: None
) -> None:
    alone = TorchDistributor(1, local_mode=False, use_gpu=False)
    assert alone.run(train, "drop", data={"train": phalanx.streamed(spark.range(0, 20, 1, 1))}) == [
        list(range(8)),
        list(range(8, 16)),
    ]
    uneven = spark.range(0, ROWS, 1, 2).where("id < 51 or id > 92")
    for kind, steps in (("drop", 1), ("wrap", 7)):
        results = stage.start(train, kind, data={"train": phalanx.streamed(uneven)}).results(120)
        assert list(map(len, results)) == [steps, steps], "FEED-51"


def test_a_streamed_set_has_the_tensors_of_blocks_and_stands_beside_them(stage: Any, spark: Any) -> None:
    def compare() -> list[str]:
        import phalanx
        import torch

        streamed = next(iter(phalanx.data("train").loader(batch_size=20)))
        (blocks,) = phalanx.data("eval").loader(batch_size=50)
        at = [blocks["id"].tolist().index(i) for i in streamed["id"].tolist()]
        kinds = []
        for name, value in streamed.items():
            other = blocks[name]
            if isinstance(value, list):
                assert value == [other[i] for i in at], name
                kinds.append("list")
            else:
                assert value.dtype == other.dtype
                assert torch.equal(value, other[at]), name
                kinds.append(f"{value.dtype} {list(value.shape[1:])}")
        return kinds

    frame = spark.range(0, 50, 1, 2).selectExpr(
        "id",
        "cast(id as float) / 3 as half",
        "cast(id % 100 as tinyint) as small",
        "id % 2 = 0 as flag",
        "date_add(date'1970-01-01', cast(id as int)) as day",
        "timestamp_micros(id) as time",
        "cast(id / 4 as decimal(12, 3)) as price",
        "array(id, id + 1) as pair",
        "string(id) as name",
    )
    data = {"train": phalanx.streamed(frame), "eval": phalanx.replicated(frame)}
    kinds = stage.start(compare, data=data).results(120)
    int64 = "torch.int64 []"
    expected = [int64, "torch.float64 []", "torch.int8 []", "torch.bool []", "torch.int32 []", int64]
    assert kinds == [[*expected, "torch.float64 []", "torch.int64 [2]", "list"]] * 2, "FEED-52"


@pytest.mark.classic
def test_spark_computes_no_faster_than_the_ranks_take_and_nothing_is_on_a_disk(
    stage: Any, spark: Any, small_batches: None, tmp_path: Path
) -> None:
    """A partition has 125 MiB, and its rank stops after the first step."""
    made = str(tmp_path)

    def produce(batches: Any) -> Any:
        import pyarrow as pa
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for batch in batches:
            with open(f"{made}/{context.partitionId()}", "ab") as file:
                file.write(b"x" * batch.num_rows)
            raw = pa.array([b"x" * (1 << 17)] * batch.num_rows, pa.binary())
            yield pa.RecordBatch.from_arrays([raw], ["x"])

    def hold(made: str) -> tuple[int, int, int]:
        import os
        import time

        import phalanx

        def on_disk() -> int:
            top = os.environ["PHALANX_RANK_DIR"]
            while "spark" in os.path.dirname(top):
                top = os.path.dirname(top)
            files = (os.path.join(folder, file) for folder, _, names in os.walk(top) for file in names)
            return sum(os.lstat(file).st_size for file in files)

        before = on_disk()
        steps = iter(phalanx.data("train").loader(batch_size=4))
        next(steps)
        path = f"{made}/{os.environ['RANK']}"
        sizes = [-1, os.path.getsize(path)]
        while sizes[-1] != sizes[-2]:
            time.sleep(1)
            sizes.append(os.path.getsize(path))
        grown = on_disk() - before
        taken = 1 + sum(1 for _ in steps)
        return sizes[-1], grown, taken

    frame = spark.range(0, 2000, 1, 2).mapInArrow(produce, "x binary")
    for made_then, grown, taken in stage.start(hold, made, data={"train": phalanx.streamed(frame)}).results(
        150
    ):
        assert made_then < 500, "FEED-47: less than half"
        assert grown < 8 << 20, "no rows are on a disk"
        assert taken == 250


@pytest.mark.parametrize("where", ["python", "jvm"])
def test_what_spark_can_not_compute_is_the_cause_and_names_the_data_set(
    stage: Any, spark: Any, small_batches: None, where: str
) -> None:
    def breaks(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == 5:
                raise ValueError("row 80 is bad")
            yield batch

    frame = spark.range(0, 1000, 1, 2)
    if where == "python":
        frame = frame.mapInArrow(breaks, "id long")
    else:
        frame = frame.selectExpr("if(id % 500 = 80, raise_error('row 80 is bad'), id) as id")
    with pytest.raises(TrainingError, match="row 80 is bad") as caught:
        stage.run(train, "drop", data={"train": phalanx.streamed(frame)})
    assert "computes the data set 'train'" in str(caught.value), "FEED-50"


def test_ranks_that_stop_early_or_never_ask_end_well(stage: Any, spark: Any, small_batches: None) -> None:
    def some(steps: int) -> int:
        import phalanx

        taken = 0
        if steps:
            for _ in phalanx.data("train").loader(batch_size=4):
                taken += 1
                if taken == steps:
                    break
        return taken

    data = {"train": phalanx.streamed(spark.range(0, 1 << 14, 1, 2))}
    assert stage.start(some, 3, data=data).results(120) == [3, 3], "FEED-49"
    assert stage.start(some, 0, data=data).results(120) == [0, 0], "FEED-49"


def test_a_killed_rank_is_named_and_the_run_ends(stage: Any, spark: Any, small_batches: None) -> None:
    def dies() -> None:
        import os
        import signal

        import phalanx

        for step, _ in enumerate(phalanx.data("train").loader(batch_size=4)):
            if step == 5 and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(TrainingError) as caught:
        stage.run(dies, data={"train": phalanx.streamed(spark.range(0, 1 << 14, 1, 2))})
    assert (caught.value.rank, caught.value.kind) == (1, "signal")
    assert signal.SIGKILL.name in str(caught.value)


def test_ranks_that_leave_one_another_say_so(stage: Any, spark: Any, small_batches: None) -> None:
    def parts() -> int:
        import os

        import phalanx

        taken = 0
        for _ in phalanx.data("train").loader(batch_size=4):
            taken += 1
            if taken == 3 and os.environ["RANK"] == "1":
                break
        return taken

    with pytest.raises(
        TrainingError, match="rank 1 has left its loop over the data set 'train' after 3 steps"
    ):
        stage.run(parts, data={"train": phalanx.streamed(spark.range(0, 1 << 14, 1, 2))})  # FEED-44


def test_what_can_not_be_streamed_is_refused_before_the_start(stage: Any, spark: Any) -> None:
    one = spark.range(10)
    streamed, here = phalanx.streamed(one), os.getcwd()

    def refused(kind: type[Exception], said: str, by: Any = stage, **data: Any) -> None:
        with pytest.raises(kind, match=said):
            by.run(train, "drop", data=data)
        assert by.last_run is None, "FEED-36"

    local = TorchDistributor(2, local_mode=True, use_gpu=False)
    refused(ValueError, "is streamed, .* use local_mode=False", local, train=streamed)
    again = TorchDistributor(2, local_mode=False, use_gpu=False, max_restarts=1)
    refused(ValueError, "is streamed, .* use max_restarts=0", again, train=streamed)
    refused(ValueError, "'a' and 'b' are both streamed", a=streamed, b=streamed)
    refused(TypeError, "is replicated and streamed at once", train=phalanx.replicated(streamed))
    refused(TypeError, "is stored and streamed at once", train=phalanx.stored(streamed, here))
    refused(TypeError, "is streamed and replicated at once", train=phalanx.streamed(phalanx.replicated(one)))
    refused(TypeError, "is streamed and stored at once", train=phalanx.streamed(phalanx.stored(one, here)))
    refused(TypeError, "has to be a Spark DataFrame, not list", train=phalanx.streamed([1]))
    with pytest.raises(ValueError, match="can't be streamed to _train_on_dataframe, whose tasks"):
        stage._train_on_dataframe(print, one, data={"train": streamed})
