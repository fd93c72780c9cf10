"""What is left, and what is said, when an end of a job goes away: the driver, a worker, the caller's patience.

Each test breaks a driver program with two endless ranks.

TEST-3 (told-in-time): the driver has a true message within the time of docs/failures.md: the grace, and 2 s more where
an executor was killed.
TEST-4 (nobody-left): no rank and no child of one is alive within the time of docs/failures.md: the grace and 2 s after
what they belong to was killed. No temporary file is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import psutil
import pytest
from support import jvm
from support.cluster import Standalone
from support.places import APPS
from support.programs import (
    ONE_EXECUTOR,
    TWO_EXECUTORS,
    WARM_IF_ASKED,
    classic_conf,
    eventually,
    executors,
    gone,
    spark_submit,
)
from support.tiers import whole
from support.trainer import Drivers, Trainer

pytestmark = pytest.mark.timeout(180)

GRACE_S = 1.0  # of `classic_conf`
# What docs/failures.md promises, and what a machine with two processors takes beside it.
LOST_S = 2 + GRACE_S
LITTLE_S = 1.0
FACES = ["local", "python", "jvm"]
STAGES = ["python", "jvm"]


class Endless(Trainer):
    """A driver of `endless.py`, whose ranks have a child each."""

    PIDS_OF_A_RANK = 2

    def __init__(self, folder: Path, face: str, conf: Mapping[str, str], *, submit: bool) -> None:
        self.temporary = Path(tempfile.mkdtemp(prefix="endless-"))
        conf = {**conf, **WARM_IF_ASKED}
        command = spark_submit(conf=conf) if submit else [sys.executable]
        env = jvm.environment(self.temporary) | ({} if submit else {"DRIVER_CONF": json.dumps(conf)})
        super().__init__(APPS / "endless.py", folder, face, command=command, env=env)

    def end(self) -> None:
        super().end()
        eventually("nothing of the ranks is left", 30, lambda: gone(self.ranks))
        shutil.rmtree(self.temporary, ignore_errors=True)

    def files_go(self) -> None:
        eventually("no temporary file is left", 30, lambda: not list(self.temporary.glob("phalanx-*")))

    def ranks_end(self) -> None:
        eventually("no rank and no child of one is alive", 30, lambda: gone(self.ranks))

    def ranks_end_in_time(self, since: float) -> None:
        left = since + LOST_S + LITTLE_S - time.time()
        eventually("TEST-4: no rank and no child of one is alive", left, lambda: gone(self.ranks))

    def fails(self, kind: str, since: float, within: float) -> str:
        """Waits for the end of the training, which is told within so many seconds; the message."""
        _, told, found, message = self.is_over(60).split(" ", 3)
        assert found == kind, message
        assert float(told) - since <= within + LITTLE_S, "TEST-3"
        return message


@pytest.fixture
def endless(tmp_path: Path, drivers: Drivers[Endless]) -> Iterator[Callable[..., Endless]]:
    """A driver whose ranks run over a stage: an earlier test's, if that goes on, or a new one."""
    with contextlib.ExitStack() as running:

        def make(
            face: str,
            master: str = ONE_EXECUTOR,
            conf: Mapping[str, str] | None = None,
            submit: bool = False,
        ) -> Endless:
            if conf is not None:
                # One that lost a worker may have both executors on the other.
                driver = running.enter_context(Endless(tmp_path, face, conf, submit=submit))
                driver.trains(face)
                return driver
            name = f"{'local' if face == 'local' else master} {submit}"
            start = partial(Endless, tmp_path, face, classic_conf(master), submit=submit)
            return running.enter_context(drivers.training(name, face, start))

        yield make


@whole("a program, where the Stop button interrupts a notebook")
@pytest.mark.parametrize("face", FACES)
def test_ctrl_c_ends_the_ranks_and_then_the_driver_sees_it(
    face: str, endless: Callable[..., Endless]
) -> None:
    driver = endless(face)
    os.kill(driver.pid, signal.SIGINT)
    driver.ranks_end()
    driver.ends(40)
    assert "INTERRUPTED" in driver.text


@whole("spark-submit")
@pytest.mark.parametrize("face", STAGES)
def test_ctrl_c_in_a_spark_submit_driver_ends_all_of_it(face: str, endless: Callable[..., Endless]) -> None:
    driver = endless(face, submit=True)
    tree = [process.pid for process in driver.tree()]
    # A terminal sends it to spark-submit's JVM, too, which ends at once and takes the Spark application with it.
    driver.interrupt()
    driver.ranks_end()
    driver.ends(40)
    eventually("no process is left", 30, lambda: gone(tree))
    driver.files_go()


@whole("over the python stage")
@pytest.mark.alone
def test_sigkill_of_a_python_worker_is_a_lost_node_and_leaves_nothing(
    endless: Callable[..., Endless],
) -> None:
    driver = endless("python")
    guard = psutil.Process(driver.ranks[0]).parent()
    assert guard is not None
    assert guard.name() == "phalanx-guard"
    worker = guard.parent()
    while worker is not None and worker.name().startswith("phalanx-"):  # a warm pool and its guard
        worker = worker.parent()
    assert worker is not None
    began = time.time()
    worker.kill()
    # Who notices first says it: the hub, whose connection broke, or Spark.
    assert re.search("is lost|Python worker exited unexpectedly", driver.fails("lost_node", began, LOST_S))
    driver.ranks_end_in_time(began)


@pytest.mark.alone
@pytest.mark.parametrize("face", STAGES)
def test_sigkill_of_an_executor_is_a_lost_node_and_leaves_nothing(
    face: str, endless: Callable[..., Endless]
) -> None:
    driver = endless(face, TWO_EXECUTORS)
    executor, _ = executors(driver.pid)
    began = time.time()
    executor.kill()
    # Who notices first says it: the hub, whose connection broke, or Spark.
    assert re.search(r"is lost|ExecutorLostFailure \(executor \d", driver.fails("lost_node", began, LOST_S))
    driver.ranks_end_in_time(began)


@whole("a standalone cluster")
@pytest.mark.alone
@pytest.mark.parametrize("face", STAGES)
def test_sigkill_of_a_spark_worker_is_a_lost_node_and_leaves_nothing(
    face: str, endless: Callable[..., Endless], standalone: Standalone
) -> None:
    driver = endless(face, conf=standalone.conf())
    daemon = standalone.workers[0]
    [executor] = executors(daemon.pid)
    began = time.time()
    daemon.process.kill()
    try:
        # The executor sees its worker's end and leaves.
        assert re.search(
            r"is lost|ExecutorLostFailure \(executor \d",
            driver.fails("lost_node", began, LOST_S),
        )
        driver.ranks_end()
        eventually("its executor is gone", 30, lambda: gone([executor.pid]))
    finally:
        standalone.restart_worker(0)


@whole("as one fault of test_matrix")
@pytest.mark.alone
@pytest.mark.parametrize("face", FACES)
def test_sigkill_of_a_rank_says_so(face: str, endless: Callable[..., Endless]) -> None:
    driver = endless(face)
    began = time.time()
    os.kill(driver.ranks[0], signal.SIGKILL)
    assert "was ended by SIGKILL" in driver.fails("signal", began, GRACE_S)
    driver.ranks_end_in_time(began)


@pytest.mark.alone
@pytest.mark.parametrize("face", FACES)
def test_after_sigkill_of_the_driver_no_rank_and_no_file_is_left(
    face: str, endless: Callable[..., Endless]
) -> None:
    driver = endless(face)
    began = time.time()
    driver.process.kill()
    driver.process.wait()
    driver.ranks_end_in_time(began)
    driver.files_go()
    eventually("no process is left", 30, lambda: gone([process.pid for process in driver.tree()]))
