"""What has to work on every line of Spark that docs/versions.md names.

`make matrix` runs it with the wheel in an environment for each line, and again with `--connect`; what all of Phalanx's
tests say of one line is said of the newest. `make test` runs what is marked `quick` on the oldest line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import TrainingError
from phalanx.spark.jar import expected_path
from support.places import APPS, PYTHON
from support.programs import (
    ONE_EXECUTOR,
    TWO_EXECUTORS,
    Program,
    classic_conf,
    eventually,
    executors,
    output_of,
    spark_submit,
)
from support.readme import python_example

pytestmark = [pytest.mark.timeout(240), pytest.mark.behaviour]


def fail_on_rank_one() -> None:
    import os
    import time

    if os.environ["RANK"] == "1":
        raise KeyError("no such column")
    time.sleep(600)


def wait(path: str) -> None:
    import os
    import time

    open(os.path.join(path, os.environ["RANK"]), "w").close()
    time.sleep(600)


def sum_of_ranks(fail_in_attempt: str | None = None) -> tuple[float, str]:
    import os
    import signal

    import torch
    import torch.distributed as dist

    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group("gloo")
    if attempt == fail_in_attempt and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item(), attempt


def all_wait(folder: Path) -> bool:
    return len(os.listdir(folder)) == 2


@pytest.mark.quick
def test_ranks_train_together(distributor: Any) -> None:
    assert distributor.start(sum_of_ranks).results(120) == [(3.0, "0")] * 2


@pytest.mark.quick
def test_a_failing_rank_is_the_cause(distributor: Any) -> None:
    with pytest.raises(TrainingError) as failure:
        distributor.run(fail_on_rank_one)
    assert (failure.value.kind, failure.value.rank) == ("exception", 1)
    assert isinstance(failure.value.__cause__, KeyError)
    assert "in fail_on_rank_one" in failure.value.traceback


@pytest.mark.quick
@pytest.mark.classic
def test_a_session_says_at_once_what_is_set(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from phalanx.spark.session import SessionConf  # here, since ranks import this file
    from support.questions import questions_to_the_jvm

    asked = questions_to_the_jvm(monkeypatch)
    conf = SessionConf(spark)
    assert {"spark.master", "spark.app.id"} <= conf.keys, "SESSION-3"
    assert conf.get("spark.master") == spark.sparkContext.master
    assert conf.get("spark.no.such.setting") is None
    assert len(asked) <= 6, f"SESSION-3: {asked}"


def test_a_cancel_ends_the_run(distributor: Any, tmp_path: Path) -> None:
    run = distributor.start(wait, str(tmp_path))
    eventually("both ranks wait", 120, lambda: all_wait(tmp_path))
    run.cancel("seen enough")
    with pytest.raises(TrainingError, match="seen enough") as cancelled:
        run.result(60)
    assert cancelled.value.kind == "cancelled"


@pytest.fixture
def one_restart(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.phalanx.maxRestarts", "1")
    yield
    spark.conf.unset("spark.phalanx.maxRestarts")


@pytest.mark.quick
def test_a_killed_rank_starts_again(distributor: Any, one_restart: None) -> None:
    assert distributor.start(sum_of_ranks, "0").results(120) == [(3.0, "1")] * 2


def test_a_file_is_run(distributor: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys, phalanx\nphalanx.set_result(sys.argv[1:])\n")
    assert distributor.run(str(tmp_path / "train.py"), "--lr", 0.1) == ["--lr", "0.1"]


@pytest.mark.classic
def test_a_cancel_by_spark_is_no_failure(stage: Any, spark: Any, tmp_path: Path) -> None:
    spark.sparkContext.setJobGroup("trainings", "what this thread trains")
    run = stage.start(wait, str(tmp_path))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    eventually("both ranks wait", 120, lambda: all_wait(tmp_path))
    spark.sparkContext.cancelJobGroup("trainings")
    with pytest.raises(TrainingError) as cancelled:
        run.result(60)
    assert cancelled.value.kind == "cancelled", "STAGE-5"


def test_a_tag_of_the_callers_cancels_the_run(stage: Any, spark: Any, tmp_path: Path) -> None:
    connected = not hasattr(spark, "_jsparkSession")
    tags: Any = spark if connected else spark.sparkContext
    add, remove = (tags.addTag, tags.removeTag) if connected else (tags.addJobTag, tags.removeJobTag)
    add("of-the-caller")
    try:
        run = stage.start(wait, str(tmp_path))
    finally:
        remove("of-the-caller")
    eventually("both ranks wait", 120, lambda: all_wait(tmp_path))
    if connected:
        tags.interruptTag("of-the-caller")
    else:
        tags.cancelJobsWithTag("of-the-caller")
    with pytest.raises(TrainingError) as cancelled:
        run.result(60)
    assert cancelled.value.kind == "cancelled", "STAGE-5"


@pytest.mark.remote
def test_tasks_reach_a_client_through_its_server(stage: Any, spark: Any) -> None:
    if spark.version.startswith("3."):
        pytest.skip("Spark Connect has such plugins from 4.0 on")
    spark.conf.set("spark.phalanx.connect", "relay")
    try:
        assert stage.run(sum_of_ranks) == (3.0, "0")
    finally:
        spark.conf.unset("spark.phalanx.connect")


def taken(name: str) -> list[tuple[int, float, list[float], str]]:
    """What this rank takes of a data set of the run, row by row."""
    import phalanx

    rows = []
    for batch in phalanx.data(name).loader(batch_size=3, uneven="pad"):
        columns = (batch["id"], batch["x"], batch["a"])
        numbers = zip(*(column[batch["mask"]].tolist() for column in columns), strict=True)
        names = [value for value, counts in zip(batch["s"], batch["mask"].tolist(), strict=True) if counts]
        rows += [(*row, name) for row, name in zip(numbers, names, strict=True)]
    return rows


@pytest.mark.parametrize("way", [pytest.param("blocks", marks=pytest.mark.quick), "streamed"])
def test_every_row_of_a_data_set_reaches_a_rank(distributor: Any, spark: Any, way: str) -> None:
    columns = ("id", "id / 3 AS x", "array(id * 0.5D, -1D) AS a", "string(id) AS s")
    frame = spark.range(0, 22, 1, 2).selectExpr(*columns)
    if distributor.local_mode and way == "streamed":
        with pytest.raises(ValueError, match="in local mode there are none"):
            distributor.run(taken, "train", data={"train": phalanx.streamed(frame)})
        return
    data = {"train": phalanx.streamed(frame) if way == "streamed" else frame}
    ranks = distributor.start(taken, "train", data=data).results(120)
    expected = [(i, i / 3, [i * 0.5, -1.0], str(i)) for i in range(22)]
    assert sorted(row for rank in ranks for row in rank) == expected


@pytest.mark.quick
def test_a_model_scores_rows(stage: Any, spark: Any) -> None:
    import torch

    spark.conf.set("spark.phalanx.predict.idleTimeout", "1s")
    net = torch.nn.Linear(2, 1)
    frame = spark.range(0, 22, 1, 2).selectExpr("id", "array(float(id), 0.5F) AS x")
    scored = phalanx.predict(frame, net, inputs="x", outputs="y float", batch_size=4)
    rows = scored.collect()
    assert [row.id for row in rows] == list(range(22))
    with torch.inference_mode():
        expected = net(torch.tensor([row.x for row in rows]))
    assert torch.allclose(torch.tensor([[row.y] for row in rows]), expected, atol=1e-5)
    if hasattr(scored, "_jdf"):
        plan = scored._jdf.queryExecution().executedPlan().toString()
        assert ("PhalanxPredict" in plan) == (spark.conf.get("spark.phalanx.stage") == "jvm"), "SCORE-21"


def test_a_data_frames_partitions_reach_their_ranks(stage: Any, spark: Any) -> None:
    def train() -> list[int]:
        from phalanx.distributor import _get_spark_partition_data_loader

        loader = _get_spark_partition_data_loader(4, 2)
        return sorted(int(value) for [ids] in loader for value in ids)

    frame = spark.range(0, 8, 1, 2)
    assert stage._train_on_dataframe(train, frame) == [0, 1, 2, 3]


def test_a_run_that_wants_more_than_its_executors_have_is_refused(stage: Any, spark: Any) -> None:
    with pytest.raises(RuntimeError) as refused:
        stage.with_options(task_cpus=2).run(sum_of_ranks)
    of_cluster = "each task of the run takes 2 cores, but an executor has 1; lower spark.phalanx.taskCpus"
    of_server = (
        "spark.phalanx.taskCpus is about Spark's executors, and with master local[2] there is only the driver"
    )
    said = of_cluster if hasattr(spark, "_jsparkSession") else of_server
    assert said in str(refused.value), "JOB-28"


RESOURCES = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
from phalanx import TorchDistributor

def sees():
    import os, torch
    return [torch.get_num_threads(), os.environ["CUDA_VISIBLE_DEVICES"]]

def said(distributor):
    try:
        return distributor.run(sees)
    except RuntimeError as problem:
        return str(problem)

spark.conf.set("spark.phalanx.stage", sys.argv[1])
own = TorchDistributor(1, local_mode=False, use_gpu=False, task_cpus=2)
ran = [own.with_options(gang=gang).run(sees) for gang in ("barrier", "tasks")]
gpu = TorchDistributor(1, local_mode=False, use_gpu=True, gpus_per_rank=1)
print("RESOURCES", json.dumps([*ran, said(gpu), spark.version]))
spark.stop()
"""


@pytest.mark.classic
@pytest.mark.parametrize("over", ["python", "jvm"])
def test_a_run_has_resources_of_its_own(over: str, tmp_path: Path) -> None:
    (tmp_path / "resources.py").write_text(RESOURCES)
    discovery = tmp_path / "discover"
    discovery.write_text("""echo '{"name": "gpu", "addresses": ["GPU-a"]}'\n""")
    discovery.chmod(0o755)
    conf = classic_conf(ONE_EXECUTOR) | {
        "spark.pyspark.python": sys.executable,
        "spark.jars": phalanx.jar_path(),
    }
    for of in ("worker", "executor"):
        conf[f"spark.{of}.resource.gpu.amount"] = "1"
        conf[f"spark.{of}.resource.gpu.discoveryScript"] = str(discovery)
    conf["spark.task.resource.gpu.amount"] = "0.5"
    command = spark_submit(tmp_path / "resources.py", over, conf=conf)
    with Program(command, tmp_path / "out") as program:
        assert program.ends(200) == 0, program.text
    *cores, gpu, version = program.printed("RESOURCES")
    assert cores == [[2, ""]] * 2, "JOB-27"
    if version.startswith("3."):
        assert f"where spark.task.resource.gpu.amount is 0.5 Spark {version} gives several ranks" in gpu, (
            "JOB-29"
        )
    else:
        assert gpu == [1, "GPU-a"], "JOB-29"


@pytest.mark.classic
def test_a_lost_executor_is_replaced(stage: Any, spark: Any, one_restart: None, tmp_path: Path) -> None:
    def train(folder: str) -> str:
        import os
        import time

        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if attempt == "0":
            open(os.path.join(folder, os.environ["RANK"]), "w").close()
            time.sleep(600)
        return attempt

    run = stage.start(train, str(tmp_path))
    eventually("both ranks wait", 120, lambda: all_wait(tmp_path))
    executors(os.getpid())[0].send_signal(signal.SIGKILL)
    assert run.results(180) == ["1", "1"]


@pytest.mark.classic
def test_the_readmes_example_runs_as_it_is_pasted(tmp_path: Path) -> None:
    assert not Path(phalanx.__file__).is_relative_to(PYTHON), "the wheel's, not the source tree's"
    output = output_of([sys.executable, python_example(tmp_path)], env={}, within=200, folder=tmp_path)
    for rank in (0, 1):
        assert f"[rank {rank}] loss " in output


@pytest.mark.classic
@pytest.mark.parametrize("over", ["python", "jvm"])
def test_an_application_is_submitted_with_the_jar(over: str, tmp_path: Path) -> None:
    conf = classic_conf(TWO_EXECUTORS) | {"spark.pyspark.python": sys.executable}
    command = spark_submit(APPS / "smoke.py", "2", over, conf=conf)
    with Program(command, tmp_path / "out") as program:
        assert program.ends(200) == 0, program.text
    seen = program.printed("SMOKE")[over]
    assert [rank["sum"] for rank in seen["results"]] == [1.5, 1.5]
    assert seen["file"] == ["--lr", "0.1"]
    assert seen["failure"] == ["exception", 1, "KeyError('no such column')", True]


@pytest.mark.classic
def test_the_other_scalas_jar_leaves_an_application_alone(tmp_path: Path) -> None:
    own = Path(expected_path())
    [other] = [path for path in own.parent.glob("*.jar") if path != own]
    conf = classic_conf(TWO_EXECUTORS) | {"spark.jars": str(other)}
    command = spark_submit(APPS / "smoke.py", "2", "auto", conf=conf)
    with Program(command, tmp_path / "out") as program:
        assert program.ends(200) == 0, program.text
    said = [line for line in program.text.splitlines() if "Phalanx's jar is built for Scala" in line]
    assert len([line for line in said if "WARN" in line]) >= 1, program.text
    assert "goes on without Phalanx's plugin" in program.text, "JAR-3"
    named = "the jar on the driver's class path can't be used: Phalanx's jar is built for Scala"
    assert f"Phalanx takes the python stage, because {named}" in program.text, "STAGE-2"
    assert [rank["sum"] for rank in program.printed("SMOKE")["auto"]["results"]] == [1.5, 1.5]
