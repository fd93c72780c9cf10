"""spark-submit on YARN, in both modes: ranks in containers, a container that YARN kills, and what is left."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.interpreters import environment
from support.places import APPS, ROOT
from support.programs import WARM_IF_ASKED, Program, eventually, gone, spark_submit
from support.tiers import whole
from support.trainer import Trainer, take
from support.yarn import EXECUTOR_HEAP_MIB, EXECUTOR_OVERHEAD_MIB, Yarn

pytestmark = [pytest.mark.timeout(300), whole("YARN")]

STAGES = ["python", "jvm"]


class Smoke:
    """What smoke.py saw over both stages, with the Python of an archive."""

    def __init__(self, yarn: Yarn, folder: Path, mode: str) -> None:
        conf = yarn.conf(mode) | WARM_IF_ASKED
        if mode == "client":
            conf["spark.pyspark.driver.python"] = sys.executable
            conf["spark.pyspark.python"] = "./environment/bin/python"
        else:
            conf["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] = "./environment/bin/python"
        archive = environment(folder, ROOT / "python")
        words = ["--archives", f"{archive}#environment", APPS / "smoke.py", "2", *STAGES]
        with Program(spark_submit(*words, conf=conf), folder / "out", env=yarn.env) as submitted:
            assert submitted.ends(240) == 0, submitted.text
        logs = yarn.logs(submitted, "stdout")
        self.driver = submitted.text if mode == "client" else logs[0]
        """The driver's own output."""
        self.executors = logs[1:]
        [line] = [line for line in self.driver.splitlines() if line.startswith("SMOKE ")]
        self.seen = json.loads(line.removeprefix("SMOKE "))

    def stage(self, stage: str) -> dict[str, Any]:
        seen: dict[str, Any] = self.seen[stage]
        assert "error" not in seen, seen["error"]
        return seen


@pytest.fixture(scope="module", params=["client", "cluster"])
def smoke(request: pytest.FixtureRequest, yarn: Yarn, tmp_path_factory: pytest.TempPathFactory) -> Smoke:
    return Smoke(yarn, tmp_path_factory.mktemp("smoke"), request.param)


@pytest.mark.parametrize("over", STAGES)
def test_ranks_in_two_containers_form_a_group_with_the_python_of_an_archive(over: str, smoke: Smoke) -> None:
    results = smoke.stage(over)["results"]
    assert [rank["sum"] for rank in results] == [1.5, 1.5]
    assert [rank["env"]["RANK"] for rank in results] == ["0", "1"]
    assert all(rank["env"]["ENVIRONMENT"] == "archived" for rank in results)
    assert len({rank["env"]["CONTAINER_ID"] for rank in results}) == 2
    assert smoke.stage(over)["file"] == ["--lr", "0.1"]


@pytest.mark.parametrize("over", STAGES)
def test_a_failing_rank_is_named_with_its_exception(over: str, smoke: Smoke) -> None:
    assert smoke.stage(over)["failure"] == ["exception", 1, "KeyError('no such column')", True]


def test_the_drivers_own_log_has_the_ranks_output(smoke: Smoke) -> None:
    for rank in range(2):
        assert smoke.driver.count(f"[rank {rank}] the sum is 1.5\n") == 2, "once for each stage"


def test_the_containers_logs_have_the_end_of_a_failing_rank(smoke: Smoke) -> None:
    logs = "".join(smoke.executors)
    assert re.search(r"^\[rank 1\] \[phalanx\] of job \w+: raised KeyError", logs, re.M), logs


def test_no_container_is_left_of_an_application_that_is_over(smoke: Smoke, yarn: Yarn) -> None:
    eventually("no container is left", 30, lambda: not yarn.containers())


def test_ranks_with_memory_of_their_own_have_it_in_containers_of_the_runs_own(
    yarn: Yarn, tmp_path: Path
) -> None:
    heap, overhead, of_a_rank, taken = 512, 256, 600, 700
    conf = yarn.conf("client") | WARM_IF_ASKED
    del conf["spark.executor.instances"]
    conf |= {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.executor.memoryOverhead": f"{overhead}m",
        "spark.pyspark.python": sys.executable,
    }
    command = spark_submit(APPS / "memory.py", str(taken), str(of_a_rank), *STAGES, conf=conf)
    with Program(command, tmp_path / "out", env=yarn.env) as submitted:
        assert submitted.ends(240) == 0, submitted.text
    [line] = [line for line in submitted.text.splitlines() if line.startswith("MEMORY ")]
    for stage, seen in json.loads(line.removeprefix("MEMORY ")).items():
        # Without memory of its own its container would be too small for a rank.
        assert seen["results"] == [taken] * 2, stage
        assert seen["most_mib"] >= 2 * (heap + overhead + of_a_rank), (stage, "JOB-29")


@pytest.fixture(scope="module")
def greedy(yarn: Yarn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """A driver in client mode, whose rank 1 takes memory when it may."""
    command = spark_submit(conf=yarn.conf("client") | WARM_IF_ASKED)
    folder = tmp_path_factory.mktemp("greedy")
    with Trainer(APPS / "greedy.py", folder, "python", command=command, env=yarn.env) as driver:
        yield driver


@pytest.mark.parametrize("over", STAGES)
def test_a_container_that_takes_too_much_memory_is_named_with_what_yarn_says(
    over: str, greedy: Trainer
) -> None:
    greedy.trains(over)
    ranks = greedy.ranks
    take(greedy, EXECUTOR_HEAP_MIB + EXECUTOR_OVERHEAD_MIB)
    kind, rank, host, text = json.loads(greedy.is_over(60).removeprefix("FAILED "))
    assert (kind, rank) == ("lost_node", 1), text
    assert host in ("127.0.0.1", "localhost"), "as YARN calls it, or the executor itself"
    assert text.startswith(f"rank 1 ({host}) is lost with its task: "), text
    assert "Container killed by YARN for exceeding physical memory limits" in text, text
    assert "spark.executor.memoryOverhead" in text, text
    eventually("no rank is left", 10, lambda: gone(ranks))


def test_after_sigkill_of_the_driver_no_rank_and_no_container_is_left(greedy: Trainer, yarn: Yarn) -> None:
    greedy.trains("python")
    left = [*greedy.ranks, *yarn.containers()]
    os.killpg(greedy.pid, signal.SIGKILL)
    eventually("no rank is left", 10, lambda: gone(greedy.ranks))
    eventually("no container is left", 60, lambda: gone(left))
