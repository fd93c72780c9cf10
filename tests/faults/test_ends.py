"""What is left, and what is said, when an end of a job goes away: the driver, a worker, the caller's patience.

Each test breaks a driver program with two endless ranks. ENDS-1: the driver has a true message within 5 s and the
grace. ENDS-2: no rank and no child of one is alive within the grace and a little, and no temporary file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from cluster import Standalone
from programs import APPS, Program, classic_conf, eventually, executors, gone, spark_submit

pytestmark = pytest.mark.timeout(180)

GRACE_S = 1.0  # of `classic_conf`
TOLD_WITHIN_S = 5 + GRACE_S
APP = APPS / "endless.py"
FACES = ["local", "python", "jvm"]
STAGES = ["python", "jvm"]


class Endless(Program):
    """A driver of `endless.py` whose ranks run."""

    def __init__(
        self, folder: Path, face: str, conf: Mapping[str, str] | None = None, submit: bool = False
    ) -> None:
        self.temporary = Path(tempfile.mkdtemp(prefix="endless-"))
        self.pids_folder = folder / "pids"
        self.pids_folder.mkdir()
        conf = conf or classic_conf("local-cluster[2,1,1024]")
        words = [str(APP), str(self.pids_folder), face]
        command = spark_submit(*words, conf=conf) if submit else [sys.executable, *words]
        env = {"TMPDIR": str(self.temporary), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self.temporary}"}
        if not submit:
            env["DRIVER_CONF"] = json.dumps(conf)
        super().__init__(command, folder / "out", env=env)
        try:
            self.ranks: list[int] = []
            self.waits_for("two ranks with a child each", 120, self._all_run)
        except BaseException:
            self.end()
            raise

    def _all_run(self) -> bool:
        found = [path.read_text().split() for path in sorted(self.pids_folder.glob("[01]"))]
        self.ranks = [int(pid) for pids in found for pid in pids]
        return len(self.ranks) == 4

    def end(self) -> None:
        super().end()
        eventually("nothing of the ranks is left", 30, lambda: gone(self.ranks))
        shutil.rmtree(self.temporary, ignore_errors=True)

    def files_go(self) -> None:
        eventually("no temporary file is left", 30, lambda: not list(self.temporary.glob("phalanx-*")))

    def ranks_end(self) -> None:
        # ENDS-2: the guard gives the grace, then needs 2 s at most.
        eventually("no rank and no child of one is alive", GRACE_S + 5, lambda: gone(self.ranks))

    def fails(self, kind: str, since: float) -> str:
        """Waits for the end of the training; the message."""

        def line() -> str | None:
            lines = [line for line in self.text.splitlines() if line.startswith("FAILED ")]
            return lines[0] if lines else None

        _, told, found, message = self.waits_for("the driver fails", 60, line).split(" ", 3)
        assert found == kind, message
        assert float(told) - since <= TOLD_WITHIN_S, "ENDS-1"
        return str(message)


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Callable[..., Endless]]:
    made: list[Endless] = []

    def make(face: str, **how: object) -> Endless:
        made.append(Endless(tmp_path, face, **how))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for driver in made:
        driver.end()


@pytest.mark.parametrize("face", FACES)
def test_after_sigkill_of_the_driver_no_rank_and_no_file_is_left(
    face: str, endless: Callable[..., Endless]
) -> None:
    driver = endless(face)
    driver.process.kill()
    driver.process.wait()
    driver.ranks_end()
    driver.files_go()
    eventually("no process is left", 30, lambda: gone([process.pid for process in driver.tree()]))


@pytest.mark.parametrize("face", FACES)
def test_ctrl_c_ends_the_ranks_and_then_the_driver_sees_it(
    face: str, endless: Callable[..., Endless]
) -> None:
    driver = endless(face)
    os.kill(driver.pid, signal.SIGINT)
    driver.ranks_end()
    driver.ends(40)
    assert "INTERRUPTED" in driver.text


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
    assert re.search("is lost|Python worker exited unexpectedly", driver.fails("lost_node", began))
    driver.ranks_end()


@pytest.mark.parametrize("face", STAGES)
def test_sigkill_of_an_executor_is_a_lost_node_and_leaves_nothing(
    face: str, endless: Callable[..., Endless]
) -> None:
    driver = endless(face)
    executor, _ = executors(driver.pid)
    began = time.time()
    executor.kill()
    # Who notices first says it: the hub, whose connection broke, or Spark.
    assert re.search(r"is lost|ExecutorLostFailure \(executor \d", driver.fails("lost_node", began))
    driver.ranks_end()


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
        assert re.search(r"is lost|ExecutorLostFailure \(executor \d", driver.fails("lost_node", began))
        driver.ranks_end()
        eventually("its executor is gone", 30, lambda: gone([executor.pid]))
    finally:
        standalone.restart_worker(0)


@pytest.mark.parametrize("face", FACES)
def test_sigkill_of_a_rank_says_so(face: str, endless: Callable[..., Endless]) -> None:
    driver = endless(face)
    began = time.time()
    os.kill(driver.ranks[0], signal.SIGKILL)
    assert "was ended by SIGKILL" in driver.fails("signal", began)
    driver.ranks_end()
