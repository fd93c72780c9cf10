"""Ranks that start again after a failure: in place, and by another Spark stage."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from phalanx import TrainingError
from support.cluster import Standalone
from support.places import APPS
from support.programs import TWO_EXECUTORS, WARM_IF_ASKED, classic_conf, eventually, executors, gone
from support.tiers import differs, whole
from support.trainer import Drivers, Trainer

pytestmark = pytest.mark.timeout(180)

STAGES = ["python", "jvm"]


@pytest.fixture
def restarts(spark: Any) -> Iterator[None]:
    """Every run has one restart."""
    spark.conf.set("spark.phalanx.maxRestarts", "1")
    yield
    spark.conf.unset("spark.phalanx.maxRestarts")


@differs(
    "python", "local", "connect", why="a node in a Python worker, or in the driver, starts its ranks again"
)
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
    distributor.options = distributor.options.with_changes(restart_on=["exception"])
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
    distributor.options = distributor.options.with_changes(grace=3600)
    assert distributor.run(train, str(tmp_path)) == "1"


def test_bad_policies_are_refused_before_anything_starts(spark: Any) -> None:
    from phalanx import TorchDistributor

    for bad, said in (
        ({"max_restarts": -1}, "whole number"),
        ({"restart_on": ["luck"]}, "one or more of exception"),
    ):
        with pytest.raises(ValueError, match=said):
            TorchDistributor(1, use_gpu=False, **bad).run(print)  # type: ignore[arg-type]


class Restarting(Trainer):
    """A driver of `restarting.py`."""

    def ends_well_again(self) -> None:
        assert self.is_over(90) == "RETURNED attempt 1", self.text
        assert self.text.count("[phalanx] restart 1 of 1: ") == self.number + 1
        assert self.text.count("; the Spark stage is submitted again") == self.number + 1
        again = [int(path.read_text()) for path in self.folder.glob("[01]-again")]
        assert len(again) == 2
        eventually("no rank is left", 30, lambda: gone([*self.ranks, *again]))


@pytest.fixture
def restarting(tmp_path: Path, drivers: Drivers[Restarting]) -> Iterator[Callable[..., Restarting]]:
    """A driver whose ranks run over a stage: an earlier test's or a new one."""
    with contextlib.ExitStack() as running:

        def make(face: str, conf: dict[str, str]) -> Restarting:
            env = {"DRIVER_CONF": json.dumps(conf | WARM_IF_ASKED)}
            start = partial(Restarting, APPS / "restarting.py", tmp_path, face, env=env)
            return running.enter_context(drivers.training(str(conf), face, start))

        yield make


# Not `face`: both stages share a driver, so they are tested in one process.
@whole("a training without data")
@pytest.mark.parametrize("over", STAGES)
def test_a_killed_executor_has_the_stage_submitted_again(
    over: str, restarting: Callable[..., Restarting]
) -> None:
    driver = restarting(over, classic_conf(TWO_EXECUTORS))
    executors(driver.pid)[0].kill()
    driver.ends_well_again()


@whole("a standalone cluster")
@pytest.mark.parametrize("over", STAGES)
def test_a_killed_executor_of_a_cluster_is_replaced_and_the_stage_submitted_again(
    over: str, restarting: Callable[..., Restarting], standalone: Standalone
) -> None:
    driver = restarting(over, standalone.conf())
    [first, _] = [executor for worker in standalone.workers for executor in executors(worker.pid)]
    first.kill()
    driver.ends_well_again()


@whole("over the python stage")
def test_a_killed_python_worker_has_the_stage_submitted_again(
    restarting: Callable[..., Restarting],
) -> None:
    driver = restarting("python", classic_conf(TWO_EXECUTORS))
    # The rank's guard, and where the ranks are warm their pool and its guard, are between.
    rank = psutil.Process(driver.ranks[0])
    worker = next(process for process in rank.parents() if not process.name().startswith("phalanx-"))
    assert worker.pid != os.getpid()
    worker.kill()
    driver.ends_well_again()
