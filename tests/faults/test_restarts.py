"""Ranks that start again after a failure: in place, and by another Spark stage."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster import Standalone
from phalanx import TrainingError
from programs import APPS, Program, classic_conf, eventually, executors, gone

pytestmark = pytest.mark.timeout(180)

STAGES = ["python", "jvm"]


@pytest.fixture
def restarts(spark: Any) -> Iterator[None]:
    """Every run has one restart."""
    spark.conf.set("spark.phalanx.maxRestarts", "1")
    yield
    spark.conf.unset("spark.phalanx.maxRestarts")


@pytest.mark.behaviour
def test_a_killed_rank_starts_again_with_all_others(
    distributor: Any, restarts: None, capfd: pytest.CaptureFixture[str]
) -> None:
    def train() -> tuple[str, int]:
        import os
        import signal

        import torch
        import torch.distributed as dist

        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        dist.init_process_group("gloo")
        if attempt == "0" and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return attempt + os.environ["TORCHELASTIC_MAX_RESTARTS"], int(total)

    assert distributor.run(train) == ("11", 2)
    shown = capfd.readouterr().out
    assert shown.count("[phalanx] restart 1 of 1: rank 1 (") == 1, shown
    assert "was ended by SIGKILL\n" in shown
    assert "submitted again" not in shown
    assert distributor.last_run.results() == [("11", 2)] * 2


@pytest.mark.behaviour
def test_an_exception_is_not_tried_again_unless_it_is_named(distributor: Any, restarts: None) -> None:
    def train() -> None:
        import os

        raise ValueError(os.environ["TORCHELASTIC_RESTART_COUNT"])

    with pytest.raises(TrainingError, match="ValueError: 0") as told:
        distributor.run(train)
    assert told.value.restarts == 0
    distributor._given["spark.phalanx.restartOn"] = "exception"
    with pytest.raises(TrainingError, match="ValueError: 1") as told:
        distributor.run(train)
    assert told.value.restarts == 1
    assert "had been restarted once before" in str(told.value)


@pytest.mark.behaviour
def test_a_stopped_rank_does_not_hold_up_a_restart(distributor: Any, restarts: None, tmp_path: Path) -> None:
    def train(folder: str) -> str:
        import os
        import signal
        import time
        from pathlib import Path

        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if attempt == "1":
            return attempt
        told = Path(folder) / "pid"
        if os.environ["RANK"] == "1":
            told.with_suffix(".new").write_text(str(os.getpid()))
            told.with_suffix(".new").rename(told)
            os.kill(os.getpid(), signal.SIGSTOP)
        while not told.exists() or ") T " not in Path(f"/proc/{told.read_text()}/stat").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    # Nobody waits for it: a stopped process is continued, so that it can act on SIGTERM.
    distributor._given["spark.phalanx.grace"] = "1h"
    assert distributor.run(train, str(tmp_path)) == "1"


def test_bad_policies_are_refused_before_anything_starts(spark: Any) -> None:
    from phalanx import TorchDistributor

    for bad, said in ({"max_restarts": -1}, "whole number"), ({"restart_on": ["luck"]}, "some of exception"):
        with pytest.raises(ValueError, match=said):
            TorchDistributor(1, use_gpu=False, **bad).run(print)  # type: ignore[arg-type]


class Restarting(Program):
    """A driver of `restarting.py` whose ranks run."""

    def __init__(self, folder: Path, face: str, conf: dict[str, str]) -> None:
        self.pids_folder = folder / "pids"
        self.pids_folder.mkdir()
        command = [sys.executable, str(APPS / "restarting.py"), str(self.pids_folder), face]
        super().__init__(command, folder / "out", env={"DRIVER_CONF": json.dumps(conf)})
        try:
            self.waits_for("two ranks", 120, lambda: len(self.ranks(0)) == 2)
        except BaseException:
            self.end()
            raise

    def ranks(self, attempt: int) -> list[int]:
        return [int(path.read_text()) for path in sorted(self.pids_folder.glob(f"[01]-{attempt}"))]

    def ends_well_again(self) -> None:
        self.waits_for("the run ends well", 90, lambda: "RETURNED attempt 1" in self.text)
        assert self.text.count("[phalanx] restart 1 of 1: ") == 1
        assert "; the Spark stage is submitted again" in self.text
        eventually("no rank is left", 30, lambda: gone([*self.ranks(0), *self.ranks(1)]))
        self.ends(60)


@pytest.mark.parametrize("face", STAGES)
def test_a_killed_executor_has_the_stage_submitted_again(face: str, tmp_path: Path) -> None:
    driver = Restarting(tmp_path, face, classic_conf("local-cluster[2,1,1024]"))
    try:
        executors(driver.pid)[0].kill()
        driver.ends_well_again()
    finally:
        driver.end()


@pytest.mark.parametrize("face", STAGES)
def test_a_killed_executor_of_a_cluster_is_replaced_and_the_stage_submitted_again(
    face: str, tmp_path: Path, standalone: Standalone
) -> None:
    driver = Restarting(tmp_path, face, standalone.conf())
    try:
        executors(standalone.workers[0].pid)[0].kill()
        driver.ends_well_again()
    finally:
        driver.end()


def test_a_killed_python_worker_has_the_stage_submitted_again(tmp_path: Path) -> None:
    driver = Restarting(tmp_path, "python", classic_conf("local-cluster[2,1,1024]"))
    try:
        # The rank's guard, and where the ranks are warm their pool and its guard, are between.
        rank = psutil.Process(driver.ranks(0)[0])
        worker = next(process for process in rank.parents() if not process.name().startswith("phalanx-"))
        assert worker.pid != os.getpid()
        worker.kill()
        driver.ends_well_again()
    finally:
        driver.end()
