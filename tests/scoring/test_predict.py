"""`phalanx.predict` over executors: outputs, calls of the model, and what is left."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import models
import phalanx
import psutil
import pytest
import torch
from pyspark.sql import functions as f
from rows import IDLE_SECONDS, ToBeCancelled, error_of, numbers, whole_case
from support.programs import eventually, executors, gone, models_here
from support.tiers import whole

pytestmark = pytest.mark.usefixtures("no_model_is_left")


@pytest.mark.parametrize("rows", [whole_case(0), whole_case(1), 1000])
def test_outputs_are_bit_for_bit_those_of_the_model_beside_the_rows_in_their_order(
    session: Any, rows: int
) -> None:
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 2))
    frame = session.range(0, rows, 1, 4).selectExpr(
        "id", "array(float(id), float(id * 0.5), 1F) as features", "concat('row', id) as name"
    )
    scored = phalanx.predict(frame, net, inputs="features", outputs="out array<float>", batch_size=64)
    assert scored.columns == ["id", "features", "name", "out"]
    found = scored.collect()
    assert [row.id for row in found] == list(range(rows))
    net.eval()
    at = 0
    for part in frame.rdd.glom().map(len).collect():
        for first in range(at, at + part, 64):
            batch = found[first : min(first + 64, at + part)]
            with torch.inference_mode():
                expected = net(torch.tensor([row.features for row in batch]))
            assert torch.equal(torch.tensor([row.out for row in batch]), expected), "SCORE-15"
        at += part


def test_several_columns_are_a_dictionary_and_several_outputs_are_told_apart(session: Any) -> None:
    from pyspark.ml.functions import array_to_vector

    def make() -> Any:
        def model(batch: dict[str, Any]) -> dict[str, Any]:
            assert batch["x"].dtype == torch.float64
            assert batch["v"].shape == (len(batch["x"]), 2)
            return {
                "label": batch["x"].long() % 3,
                "sums": (batch["v"].sum(1) + batch["flag"]).float(),
                "texts": [None if text is None else text.upper() for text in batch["t"]],
                "raw": [bytes(blob or b"") for blob in batch["b"]],
                "grid": batch["x"].float().reshape(-1, 1, 1).expand(-1, 2, 3),
                "unwanted": None,
            }

        return model

    frame = numbers(session).select(
        "*",
        array_to_vector(f.array("x", f.lit(1.0))).alias("v"),
        f.expr("id % 2 = 0").alias("flag"),
        f.expr("if(id = 5, null, concat('t', id))").alias("t"),
        f.expr("encode(string(id), 'utf-8')").alias("b"),
    )
    scored = phalanx.predict(
        frame,
        make,
        inputs=["x", "v", "flag", "t", "b"],
        outputs="label int, sums double, texts string, raw binary, grid array<array<float>>",
        batch_size=17,
    )
    for row in scored.collect():
        assert (row.label, row.sums) == (row.id % 3, row.id + 1 + (row.id % 2 == 0)), "SCORE-13"
        assert row.texts == (None if row.id == 5 else f"T{row.id}")
        assert (bytes(row.raw), row.grid) == (str(row.id).encode(), [[float(row.id)] * 3] * 2)


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (lambda scored: scored.filter("y > 10"), 100),
        whole_case(lambda scored: scored.select("y", "process"), 100),
        whole_case(lambda scored: scored.select(f.col("y") + f.col("y"), f.col("process") * f.col("y")), 100),
        whole_case(
            lambda scored: scored.filter("y > 10").filter("process > 0").select("process").distinct(), 100
        ),
        whole_case(lambda scored: scored.groupBy("process").agg(f.sum("y")), 100),
        (lambda scored: scored.alias("a").join(scored.alias("b"), "id"), 200),
        whole_case(lambda scored: scored.filter("id < 50"), 100),
    ],
    ids=["filter", "select", "expressions", "filters", "group", "self-join", "pushed"],
)
def test_the_model_is_asked_once_for_each_row(
    session: Any, counting: models.Counting, query: Callable[[Any], Any], rows: int
) -> None:
    scored = phalanx.predict(numbers(session), counting, inputs="x", outputs="y double, process long")
    query(scored).collect()
    # A filter of a column that was there before may go first.
    assert counting.rows <= rows, "SCORE-12"
    assert counting.rows >= rows or counting.rows == 50, "SCORE-12"


@whole("another query")
def test_a_limit_asks_for_no_more_than_its_partitions_and_a_cache_once(
    session: Any, counting: models.Counting
) -> None:
    scored = phalanx.predict(
        numbers(session, 5000, 2), counting, inputs="x", outputs="y double, process long", batch_size=100
    )
    assert len(scored.limit(5).collect()) == 5
    assert counting.rows <= 2500, "SCORE-12"
    counting.forget()
    cached = scored.cache()
    assert cached.count() == cached.count() == 5000
    assert counting.rows == 5000, "SCORE-12"
    cached.unpersist()


def test_the_plan_says_who_asks_the_model(session: Any, over: str) -> None:
    """SCORE-21: JVMs do where they can; a function of the user's needs Python."""
    frame = numbers(session)

    def plan_of(**options: Any) -> str:
        scored = phalanx.predict(frame, models.Twice(), inputs="x", outputs="y double", **options)
        return str(scored._jdf.queryExecution().executedPlan().toString())

    assert ("PhalanxPredict [x" in plan_of()) == (over == "jvm")
    assert ("Arrow" in plan_of()) == (over == "python")
    assert "ArrowEvalPython" in plan_of(preprocess=lambda x: x)
    assert (
        phalanx.predict(frame, models.Twice(), inputs="x", outputs="y double").select(frame["id"]).count()
        == 100
    )
    assert (
        "__phalanx"
        not in phalanx.predict(frame, models.Twice(), inputs="x", outputs="y double").schema.json()
    )


def test_python_workers_get_rows_of_files_of_columns(session: Any, over: str, tmp_path: Path) -> None:
    numbers(session).write.parquet(str(tmp_path / "rows"))
    scored = phalanx.predict(
        session.read.parquet(str(tmp_path / "rows")), models.Twice(), inputs="x", outputs="y double"
    )
    plan = str(scored._jdf.queryExecution().sparkPlan().toString())
    assert (
        ("ArrowEvalPython" in plan) == ("Filter (SPARK_PARTITION_ID() >= 0)" in plan) == (over == "python")
    ), "SCORE-24"
    assert {(row.x, row.y) for row in scored.collect()} == {(n, 2 * n) for n in range(100)}


@pytest.mark.skipif(not hasattr(f, "arrow_udf"), reason="Spark has functions of Arrow's arrays from 4.1 on")
def test_a_query_may_have_other_functions_of_arrow_beside_it(session: Any) -> None:
    from pyspark.sql.pandas.functions import ArrowUDFType

    def doubled(arrays: Iterator[Any]) -> Iterator[Any]:
        import pyarrow.compute as pc

        for array in arrays:
            yield pc.multiply(array, 2)

    other = f.arrow_udf(doubled, "double", ArrowUDFType.SCALAR_ITER)
    frame = session.range(0, 40, 1, 2).selectExpr("id", "double(id) as x")
    scored = phalanx.predict(
        frame.withColumn("w", other("x")), models.Twice(), inputs="x", outputs="y double"
    )
    twice = phalanx.predict(scored, models.Twice(), inputs="w", outputs="z double")
    found = twice.withColumn("v", other("x")).collect()
    assert [(row.w, row.y, row.z, row.v) for row in found] == [
        (2 * n, 2 * n, 4 * n, 2 * n) for n in range(40)
    ]


def test_tasks_of_an_executor_share_one_process_which_stays_for_the_next_query_and_no_longer(
    session: Any,
) -> None:
    frame, model = numbers(session, 400, 8), models.WithProcess()

    def processes_of(model: Any) -> set[int]:
        scored = phalanx.predict(frame, model, inputs="x", outputs="y double, process long", batch_size=10)
        return {row.process for row in scored.select("process").distinct().collect()}

    eventually("processes of other tests end (SCORE-3)", IDLE_SECONDS + 20, lambda: not models_here())
    session.conf.set("spark.phalanx.predict.idleTimeout", "1min")
    first = processes_of(model)
    assert 1 <= len(first) <= 2, "two executors"
    assert {process.pid for process in models_here()} == first
    again = processes_of(model)
    assert again & first, "a process stays for the next query"
    assert {process.pid for process in models_here()} == first | again
    for pid in first | again:
        # SCORE-7: whoever may connect is this user's. POOL-15: it belongs to the executor, by a guard of its own.
        guard = psutil.Process(pid).parent()
        assert guard is not None
        assert (guard.name(), guard.username()) == ("phalanx-guard", psutil.Process().username())
    # What a function reads may have changed, so it is called again; and it stays no longer than it was told.
    session.conf.set("spark.phalanx.predict.idleTimeout", f"{IDLE_SECONDS}s")
    others = processes_of(lambda: model)
    assert not others & (first | again)
    eventually("idle processes end (SCORE-3)", IDLE_SECONDS + 20, lambda: gone(list(others)))
    for pid in first | again:
        os.kill(pid, signal.SIGKILL)


def test_a_process_that_is_to_stay_no_longer_than_its_tasks_is_there_for_each_query(session: Any) -> None:
    session.conf.set("spark.phalanx.predict.idleTimeout", "0s")
    for _ in range(2):
        scored = phalanx.predict(numbers(session, 8, 4), models.Twice(), inputs="x", outputs="y double")
        assert {row.y for row in scored.collect()} == {2 * n for n in range(8)}, "SCORE-3"
        eventually("idle processes end (SCORE-3)", 20, lambda: not models_here())


@whole("another way to ask")
def test_what_predict_returns_is_a_view_for_sql(session: Any) -> None:
    scored = phalanx.predict(numbers(session), models.Twice(), inputs="x", outputs="y double")
    scored.createOrReplaceTempView("scored")
    found = session.sql(
        "select max(y) as y, count(*) as n from scored where y > 100 and id % 2 = 0"
    ).collect()
    assert [(row.y, row.n) for row in found] == [(196, 24)]


@whole("another look at a model")
def test_a_model_computes_with_as_many_threads_as_its_executor_has_processors(session: Any) -> None:
    def make() -> Any:
        return lambda x: (
            torch.full((len(x),), torch.get_num_threads()),
            [os.environ["OMP_WAIT_POLICY"]] * len(x),
        )

    scored = phalanx.predict(numbers(session), make, inputs="x", outputs="threads int, waiting string")
    assert {(row.threads, row.waiting) for row in scored.collect()} == {(1, "PASSIVE")}


@whole("more processes")
def test_tasks_are_spread_over_as_many_processes_as_are_wanted(session: Any) -> None:
    scored = phalanx.predict(
        numbers(session, 400, 8),
        models.WithProcess(),
        inputs="x",
        outputs="y double, process long",
        processes_per_device=2,
    )
    processes = {row.process for row in scored.collect()}
    assert 2 <= len(processes) <= 4, "of two executors"


def test_a_batch_that_is_too_large_for_the_memory_is_halved_and_its_outputs_are_whole(session: Any) -> None:
    """SCORE-22, as far as processors show it: here the model says what a GPU's memory would."""

    def make() -> Any:
        import torch

        def model(x: Any) -> Any:
            if len(x) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return x + 1, [str(len(x))] * len(x)

        return model

    frame = numbers(session, 23, 1)
    scored = phalanx.predict(frame, make, inputs="x", outputs="y double, rows string", batch_size=10)
    rows = scored.collect()
    assert [row.y for row in rows] == [row + 1 for row in range(23)]
    assert {row.rows for row in rows} <= {"1", "2", "3"}


@whole("another kind of number")
def test_operations_are_cast_where_that_is_asked_for(session: Any) -> None:
    net, frame = torch.nn.Linear(1, 1), numbers(session).selectExpr("array(float(id / 7)) as x")
    outputs = [
        [row.y for row in phalanx.predict(frame, net, inputs="x", outputs="y float", autocast=how).collect()]
        for how in (None, "bfloat16")
    ]
    assert outputs[0] != outputs[1]
    assert outputs[0] == pytest.approx(outputs[1], rel=0.05, abs=0.05)


@whole("another end")
def test_what_a_model_has_started_ends_with_it(session: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"

    def make() -> Any:
        import subprocess

        with started.open("a") as file:
            file.write(f"{subprocess.Popen(['sleep', '1000']).pid}\n")
        return lambda x: x

    phalanx.predict(numbers(session), make, inputs="x", outputs="y double").collect()
    pids = [int(pid) for pid in started.read_text().split()]
    assert not gone(pids)
    eventually("what a model started ends with it (SCORE-3)", IDLE_SECONDS + 20, lambda: gone(pids))


def test_the_callers_model_stays_as_it_is_and_is_sent_again_once_it_has_changed(session: Any) -> None:
    net, frame = models.Twice(), numbers(session, 4, 1)

    def scores() -> list[float]:
        scored = phalanx.predict(frame, net, inputs="x", outputs="y double")
        return [row.y for row in scored.collect()]

    assert scores() == [0, 2, 4, 6]
    assert net.training, "SCORE-11"
    with torch.no_grad():
        net.factor.add_(1)
    assert scores() == [0, 3, 6, 9], "SCORE-11"
    found = phalanx.predict(frame, (7, {"net": net, "step": 7}), inputs="x", outputs="y double")
    assert [row.y for row in found.collect()] == [0, 3, 6, 9], "a state of phalanx.checkpoint"
    net.factor.data.mul_(2)  # changes no version
    assert scores() == [0, 6, 12, 18], "SCORE-11"


@whole("another kind of model")
def test_files_of_torchscript_and_export_are_models_and_one_of_weights_is_not(
    session: Any, tmp_path: Path
) -> None:
    net, frame = models.Twice().eval(), numbers(session, 4, 1)
    example = torch.zeros(3, dtype=torch.float64)
    torch.jit.save(torch.jit.trace(net, (example,)), tmp_path / "script.pt")
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(net, (example,), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    by_uri = f"file://{tmp_path}/script.pt"
    for model in (tmp_path / "script.pt", by_uri, str(tmp_path / "program.pt2"), program):
        scored = phalanx.predict(frame, model, inputs="x", outputs="y double")
        assert [row.y for row in scored.collect()] == [0, 2, 4, 6]
    with pytest.raises(ValueError, match=r"weights\.pt was written by torch\.save"):
        phalanx.predict(frame, tmp_path / "weights.pt", inputs="x", outputs="y double")


@whole("another way to the model")
def test_preprocess_runs_in_the_tasks_and_the_model_gets_what_it_makes(session: Any) -> None:
    def decode(blobs: list[bytes]) -> torch.Tensor:
        assert "phalanx-model" not in Path("/proc/self/comm").read_text()
        return torch.tensor([[float(len(blob)), float(blob[0])] for blob in blobs])

    frame = session.range(5).selectExpr("id", "encode(repeat('a', int(id) + 1), 'utf-8') as image")
    scored = phalanx.predict(
        frame, lambda: lambda x: x.sum(1), inputs="image", outputs="y float", preprocess=decode
    )
    assert [row.y for row in scored.orderBy("id").collect()] == [98, 99, 100, 101, 102]


def slow(session: Any, tmp_path: Path, seconds: float = 0.3) -> tuple[Any, Path]:
    started = tmp_path / "started"
    model = models.Slow(str(started), seconds)
    return phalanx.predict(
        numbers(session, 40, 2), model, inputs="x", outputs="y double", batch_size=4
    ), started


def test_a_process_that_is_killed_is_started_again_and_its_batches_are_repeated(
    session: Any, tmp_path: Path
) -> None:
    scored, started = slow(session, tmp_path)
    rows: list[Any] = []
    query = threading.Thread(target=lambda: rows.extend(scored.collect()))
    query.start()
    eventually("a model computes", 60, started.exists)
    os.kill(int(started.read_text().split()[0]), signal.SIGKILL)
    query.join(120)
    assert [row.y for row in rows] == [row + 1 for row in range(40)], "SCORE-4"


@whole("another failure")
def test_a_process_that_ends_again_and_again_fails_the_query_in_a_sentence(session: Any) -> None:
    def make() -> Any:
        import os

        return lambda x: os._exit(3)

    text = error_of(phalanx.predict(numbers(session, 4, 1), make, inputs="x", outputs="y double").collect)
    assert "the process of the model ended in the midst of its batches, twice" in text, "SCORE-4"


@whole("another failure")
def test_a_query_that_loses_an_executor_has_each_row_once(session: Any, tmp_path: Path) -> None:
    scored, started = slow(session, tmp_path)
    rows: list[Any] = []
    query = threading.Thread(target=lambda: rows.extend(scored.collect()))
    query.start()
    eventually("a model computes", 60, started.exists)
    executors(os.getpid())[0].kill()
    query.join(150)
    assert [(row.id, row.y) for row in rows] == [(row, row + 1) for row in range(40)], "SCORE-15, JAR-32"


@pytest.mark.parametrize("ends", [whole_case("cancel"), "executors"])
def test_nothing_is_left_of_a_query_that_is_cancelled_or_whose_executors_are_killed(
    session: Any, tmp_path: Path, ends: str
) -> None:
    scored, started = slow(session, tmp_path, 600)
    query = ToBeCancelled(session, scored)
    eventually("a model computes", 60, started.exists)
    pids = {model.pid for model in models_here()}
    if ends == "executors":
        for executor in executors(os.getpid()):
            executor.kill()
        eventually("models end with their executors (SCORE-3)", 20, lambda: gone(list(pids)))
    assert "cancel" in query.cancel().lower()
    eventually("models end though their tasks were killed (SCORE-3)", 30, lambda: not models_here())


def test_a_task_of_its_own_imports_no_torch(session: Any) -> None:
    """SCORE-10: what a task needs is numpy and pyarrow."""

    def imported(batches: Iterator[Any]) -> Iterator[Any]:
        import sys

        import pyarrow as pa
        from phalanx.scoring import task  # noqa: F401

        for _ in batches:
            pass
        yield pa.record_batch([pa.array(["torch" in sys.modules])], ["torch"])

    found = session.range(0, 1, 1, 1).mapInArrow(imported, "torch boolean").collect()
    assert [row.torch for row in found] == [False]


@whole("another look at what is left")
def test_a_models_file_is_read_from_memory_that_ends_with_it(session: Any, counting: models.Counting) -> None:
    buffer = io.BytesIO()
    torch.save(torch.zeros(10), buffer)
    phalanx.predict(numbers(session), counting, inputs="x", outputs="y double, process long").collect()

    def opened_in_worker(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        for batch in batches:
            yield pa.record_batch([pa.array([" ".join(links)] * len(batch))], ["links"])

    # The workers that have scored are used again.
    for row in session.range(0, 8, 1, 8).mapInArrow(opened_in_worker, "links string").collect():
        assert "phalanx-model" not in row.links, "SCORE-3"
        assert "phalanx-batch" not in row.links, "SCORE-3"
    for model in models_here():
        opened = [os.readlink(f"/proc/{model.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{model.pid}/fd")]
        assert not any("phalanx-model" in name for name in opened), "the packed model is not kept"
        assert not any("phalanx-batch" in name for name in opened), "SCORE-3: nor is the memory of batches"
