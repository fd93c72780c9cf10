"""Programs of their own that tests start: drivers, daemons, spark-submit; and what tests ask about processes.

PROG-1: after `end` neither the program nor any process that it ever had below it is alive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import phalanx
import psutil

ROOT = Path(__file__).resolve().parent.parent
APPS = ROOT / "tests" / "apps"

# What every process that comes from these tests has in its environment.
TESTS = "PHALANX_TESTS"
os.environ.setdefault(TESTS, str(os.getpid()))


def eventually(what: str, within: float, is_so: Callable[[], Any]) -> Any:
    """Waits until `is_so()` is true and returns it; fails with `what` if it isn't `within` so many seconds."""
    until = time.monotonic() + within
    while not (found := is_so()):
        assert time.monotonic() < until, f"not within {within} s: {what}"
        time.sleep(0.02)
    return found


def alive(pids: Sequence[int]) -> list[int]:
    """Which of these processes run."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def gone(pids: Sequence[int]) -> bool:
    """Whether none of these processes runs."""
    return not alive(pids)


def below(pid: int) -> list[psutil.Process]:
    """The processes that come from this one, and still hang on it."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def executors(pid: int) -> list[psutil.Process]:
    """The executors' JVMs below this process."""
    found = []
    for process in below(pid):
        with contextlib.suppress(psutil.NoSuchProcess):  # nor is a zombie's command line to be had
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process)
    return found


def private_folders(spark: Any) -> list[Path]:
    """What nodes of this session, in the driver and in executors, keep while their ranks run: payloads, results."""
    places = [str(spark.sparkContext._temp_dir)]
    places += [process.environ().get("SPARK_LOCAL_DIRS", "") for process in executors(os.getpid())]
    roots = {Path(place) for several in places for place in several.split(",") if place}
    return [path for root in roots for path in root.glob("**/phalanx-*/task-*")]


def spark_home() -> Path:
    """The Spark that is installed with pyspark."""
    import pyspark

    return Path(pyspark.__file__).parent


def spark_submit(*arguments: str | Path, conf: Mapping[str, str]) -> list[str]:
    """A command line of spark-submit."""
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return [str(spark_home() / "bin" / "spark-submit"), *settings, *map(str, arguments)]


def classic_conf(master: str) -> dict[str, str]:
    """The settings of a driver on this machine that may take either stage."""
    return {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.phalanx.grace": "1s",
        **phalanx.spark_conf(),
    }


def guards() -> list[psutil.Process]:
    """The guards of ranks of these tests; not those of warm pools.

    They are not all below this process: those of a Python worker's pool outlive the worker that started it.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() != "phalanx-guard" or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(TESTS) != os.environ[TESTS]:
                continue
            # Warm ranks have the pool's command line, too; their guard is the pool's child.
            has_pool = any("phalanx.pool" in " ".join(child.cmdline()) for child in process.children())
            parent = process.parent()
            if not has_pool or (parent is not None and parent.name() == "phalanx-pool"):
                found.append(process)
        except psutil.Error:
            continue
    return found


class Program:
    """A process in a session of its own, whose stdout and stderr go to one file."""

    def __init__(
        self,
        command: Sequence[str | Path],
        out: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.out = out
        self._known: dict[int, psutil.Process] = {}
        with out.open("wb") as file:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.out.read_text(errors="replace")

    def tree(self) -> list[psutil.Process]:
        """All processes that it has, or was seen to have, below it."""
        for process in below(self.pid):
            self._known.setdefault(process.pid, process)
        return list(self._known.values())

    def waits_for(self, what: str, within: float, is_so: Callable[[], Any]) -> Any:
        """As `eventually`, but it fails at once, with the output, if the program ends."""

        def ended_or_so() -> Any:
            found = is_so()
            if not found:
                self.tree()
                assert self.process.poll() is None, f"ended before {what}:\n{self.text}"
            return found

        return eventually(f"{what}; {self.out} has its output", within, ended_or_so)

    def ends(self, within: float) -> int:
        """Waits for its end; the exit code."""

        def ended() -> bool:
            if self.process.poll() is not None:
                return True
            self.tree()
            return False

        eventually(f"the program ends; {self.out} has its output", within, ended)
        return int(self.process.returncode)

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to the whole foreground process group, as a terminal sends it."""
        os.killpg(self.pid, signal.SIGINT)

    def end(self) -> None:
        """Ends it and all that it started, by SIGKILL, and waits until nothing is alive."""
        tree = self.tree()
        self.process.kill()
        self.process.wait()
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        left = [process.pid for process in tree if process.is_running()]
        eventually(f"everything below {self.pid} is gone", 30, lambda: gone(left))

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
