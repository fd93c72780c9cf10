"""What is left, and what is said, when an end of a job goes away: the driver, a worker, the caller's patience."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from programs import eventually, gone

pytestmark = pytest.mark.timeout(150)

DRIVER = """
import logging, os, sys, time
folder, mode = sys.argv[1:]
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.phalanx.grace", "1s").getOrCreate())
spark.sparkContext.setLogLevel("OFF")
from phalanx import TorchDistributor, TrainingError

def train(folder):
    import os, signal, subprocess, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
    with open(os.path.join(folder, os.environ["RANK"]), "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(600)

try:
    TorchDistributor(num_processes=2, local_mode=mode == "local", use_gpu=False).run(train, folder)
except TrainingError as error:
    print("FAILED", error.kind, error.message, flush=True)
    spark.stop()
except KeyboardInterrupt:
    print("INTERRUPTED", flush=True)
    spark.stop()
"""


def ours() -> set[Path]:
    """What Phalanx has in the system's folder for temporary files."""
    return set(Path(tempfile.gettempdir()).glob("phalanx-*"))


class Driver:
    """A driver program of its own, with two ranks that won't end by themselves, and a child of each."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.files_before = ours()
        program = folder / "driver.py"
        program.write_text(textwrap.dedent(DRIVER))
        self.pids_folder = folder / "pids"
        self.pids_folder.mkdir()
        self.out = folder / "out"
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(program), str(self.pids_folder), mode],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.tree: list[int] = eventually("two ranks with a child each", 90, self._pids)
        self.rest = [process.pid for process in psutil.Process(self.process.pid).children(recursive=True)]

    def _pids(self) -> list[int]:
        assert self.process.poll() is None, self.out.read_text()
        found = [int(pid) for path in self.pids_folder.iterdir() for pid in path.read_text().split()]
        return found if len(found) == 4 else []

    def end(self) -> None:
        """Whatever the test came to, nothing stays."""
        self.process.kill()
        self.process.wait()
        eventually("everything of the driver is gone", 30, lambda: gone(self.tree + self.rest))


@pytest.fixture(params=["local", "stage"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    made = Driver(tmp_path, request.param)
    yield made
    made.end()


def ended_within_grace(driver: Driver) -> None:
    # The grace is 1 s, the guarantee 2 s more; the rest is for a busy machine.
    eventually("no rank and no child of one is alive", 10, lambda: gone(driver.tree))


def test_after_sigkill_of_the_driver_no_rank_and_no_file_is_left(driver: Driver) -> None:
    driver.process.kill()
    driver.process.wait()
    ended_within_grace(driver)
    eventually("no temporary file is left", 30, lambda: ours() <= driver.files_before)


def test_ctrl_c_ends_the_ranks_and_then_the_driver_sees_it(driver: Driver) -> None:
    os.kill(driver.process.pid, signal.SIGINT)
    eventually("the driver has ended", 40, lambda: driver.process.poll() is not None)
    ended_within_grace(driver)
    assert "INTERRUPTED" in driver.out.read_text()


def workers(driver: Driver, wanted: Callable[[list[str]], bool]) -> list[psutil.Process]:
    return [p for p in psutil.Process(driver.process.pid).children(recursive=True) if wanted(p.cmdline())]


@pytest.mark.parametrize("driver", ["stage"], indirect=True)
def test_sigkill_of_a_python_worker_is_a_lost_node_and_leaves_nothing(driver: Driver) -> None:
    rank = psutil.Process(driver.tree[0])
    guard = rank.parent()
    assert guard is not None
    assert guard.name() == "phalanx-guard"
    worker = guard.parent()
    assert worker is not None
    worker.kill()
    eventually("the driver has ended", 60, lambda: driver.process.poll() is not None)
    ended_within_grace(driver)
    assert "FAILED lost_node" in driver.out.read_text()


@pytest.mark.parametrize("driver", ["stage"], indirect=True)
def test_sigkill_of_an_executor_is_a_lost_node_and_leaves_nothing(driver: Driver) -> None:
    def executor(command: list[str]) -> bool:
        return any("CoarseGrainedExecutorBackend" in word for word in command)

    workers(driver, executor)[0].kill()
    eventually("the driver has ended", 60, lambda: driver.process.poll() is not None)
    ended_within_grace(driver)
    assert "FAILED lost_node" in driver.out.read_text()


def test_sigkill_of_a_rank_says_so(driver: Driver) -> None:
    os.kill(driver.tree[0], signal.SIGKILL)
    eventually("the driver has ended", 60, lambda: driver.process.poll() is not None)
    ended_within_grace(driver)
    text = driver.out.read_text()
    assert "FAILED signal" in text
    assert "was ended by SIGKILL" in text
