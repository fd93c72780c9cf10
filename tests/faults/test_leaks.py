"""Many jobs in one application leave nothing: no descriptor, thread, process or file, in the driver or an executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor
from support.programs import eventually
from support.tiers import whole
from support.usage import Usage

pytestmark = pytest.mark.timeout(300)

JOBS, SETTLED = 100, 10


def by_scala(spark: Any) -> Callable[[], object]:
    """A job of the Scala API whose ranks are native programs."""
    distributor = spark.sparkContext._jvm.dev.phalanx.spark.TorchDistributor(2, False, False)
    return lambda: distributor.runProgram(["/bin/true"])


@pytest.fixture(params=["jvm", "scala"])
def run_a_job(request: pytest.FixtureRequest, spark: Any) -> Any:
    if request.param == "scala":
        yield by_scala(spark)
        return
    spark.conf.set("spark.phalanx.stage", request.param)
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    yield lambda: distributor.run(lambda: None)
    spark.conf.unset("spark.phalanx.stage")


@whole("many runs")
def test_a_hundred_jobs_leave_no_more_than_ten_did(run_a_job: Callable[[], object], spark: Any) -> None:
    for _ in range(SETTLED):
        run_a_job()
    before = Usage(spark)
    for _ in range(JOBS - SETTLED):
        run_a_job()
    growth: list[str] = []

    def as_before() -> bool:
        growth[:] = Usage(spark).growth(before)
        return not growth

    try:
        eventually("as much as after the tenth", 30, as_before)
    except AssertionError:
        pytest.fail(f"more than after {SETTLED} jobs: {growth}")


@whole("executors, for two runs at once")
def test_two_jobs_at_once_in_one_application_do_not_meet_and_leave_nothing(
    spark: Any, tmp_path: Path
) -> None:
    def train(mine: str, others: str) -> str:
        import os
        import time

        open(mine, "w").close()
        while not os.path.exists(others):
            time.sleep(0.02)
        return os.environ["MASTER_PORT"]

    spark.conf.set("spark.phalanx.stage", "jvm")
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    try:
        distributor = TorchDistributor(num_processes=1, local_mode=False, use_gpu=False)
        distributor.run(lambda: None)
        before = Usage(spark)
        runs = [distributor.start(train, one, other), distributor.start(train, other, one)]
        ports = {run.result(60) for run in runs}
    finally:
        spark.conf.unset("spark.phalanx.stage")
    assert len(ports) == 2, "each has a store of its own"
    eventually("no process more", 30, lambda: Usage(spark).pids <= before.pids)
