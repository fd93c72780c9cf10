"""Programs of their own that tests start: drivers, daemons, spark-submit; and what tests ask about processes.

TEST-15 (nobody-left): after `end` neither the program nor any process that it ever had below it is alive.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import phalanx
import psutil

from support.identity import is_mine


def eventually(what: str, within: float, is_so: Callable[[], Any]) -> Any:
    """Waits until `is_so()` is true and returns it; fails with `what` if it isn't `within` so many seconds."""
    until = time.monotonic() + within
    while True:
        asked = time.monotonic()
        if found := is_so():
            return found
        now = time.monotonic()
        assert now < until, f"not within {within} s: {what}"
        # What it waits for needs the processor, too.
        time.sleep(min(max(0.02, 2 * (now - asked)), 0.2))


class Entry(NamedTuple):
    """What the table has of a process."""

    parent: int
    name: str
    """Its first fifteen bytes."""
    has_ended: bool
    """Whether it is a zombie."""


def processes() -> dict[int, Entry]:
    """Every process by its id, from `/proc/PID/stat`, see proc(5).

    psutil reads /proc once for each process whose children it is asked for: to find the guards among 150 processes so
    took 30 ms of a processor, after each test.
    """
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            descriptor = os.open(f"/proc/{name}/stat", os.O_RDONLY)
        except OSError:  # it is gone
            continue
        try:
            # More than the fields that are wanted, of which the second may hold anything, in parentheses.
            stat = os.read(descriptor, 256)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        begin, end = stat.index(b"("), stat.rindex(b")")
        state, parent = stat[end + 2 :].split(None, 2)[:2]
        found[int(name)] = Entry(int(parent), stat[begin + 1 : end].decode(errors="replace"), state == b"Z")
    return found


def children(table: dict[int, Entry], pid: int) -> list[int]:
    """The processes whose parent this one is."""
    return [child for child, entry in table.items() if entry.parent == pid]


def descendants(table: dict[int, Entry], pid: int) -> list[int]:
    """The processes that come from this one, and still hang on it; parents before their children."""
    by_parent: dict[int, list[int]] = {}
    for child, entry in table.items():
        by_parent.setdefault(entry.parent, []).append(child)
    found = [pid]
    for one in found:
        # Each once: while the table was read, a process may have taken the id of one that it comes from.
        found += by_parent.pop(one, [])
    return found[1:]


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
    found = []
    for each in descendants(processes(), pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(each))
    return found


def executors(pid: int) -> list[psutil.Process]:
    """The executors' JVMs below this process."""
    table = processes()
    found = []
    for each in descendants(table, pid):
        if table[each].name != "java":
            continue
        with contextlib.suppress(psutil.NoSuchProcess):  # nor is a zombie's command line to be had
            process = psutil.Process(each)
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process)
    return found


def private_folders(spark: Any) -> list[Path]:
    """What nodes of this session, in the driver and in executors, keep while their ranks run: payloads, results."""
    places = [str(spark.sparkContext._temp_dir)]
    places += [process.environ().get("SPARK_LOCAL_DIRS", "") for process in executors(os.getpid())]
    roots = {Path(place) for several in places for place in several.split(",") if place}
    # Unlike pathlib it passes over what goes meanwhile.
    return [
        Path(path) for root in roots for path in glob.iglob(f"{root}/**/phalanx-*/task-*", recursive=True)
    ]


def spark_home() -> Path:
    """The Spark that is installed with pyspark."""
    import pyspark

    return Path(pyspark.__file__).parent


def spark_submit(*arguments: str | Path, conf: Mapping[str, str]) -> list[str]:
    """A command line of spark-submit."""
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return [str(spark_home() / "bin" / "spark-submit"), *settings, *map(str, arguments)]


# Both have two slots. That of one executor takes 5 s of processor time less to start, with its pools and workers: it is
# for a driver of a test's own whose executors nobody tells apart.
TWO_EXECUTORS = "local-cluster[2,1,1024]"
ONE_EXECUTOR = "local-cluster[1,2,1024]"


def classic_conf(master: str) -> dict[str, str]:
    """The settings of a driver on this machine that may take either stage."""
    return {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.phalanx.grace": "1s",
        # A pool takes half a GiB, and what is left of 24 has to hold torch's files.
        "spark.phalanx.warm.idleTimeout": "3min",
        **phalanx.spark_conf(),
    }


LOOK_EVERY_S = 0.2

# No executor imports torch before it is asked to, and ranks are cold unless a run asks for warm ones. A pool takes 2 s
# of processor time. A driver that is started for one fault has up to five of them, most for nobody.
WARM_IF_ASKED = {"spark.phalanx.warm.enabled": "false"}


def models_here() -> list[psutil.Process]:
    """The processes of models that score rows for these tests."""
    found = []
    for pid, entry in processes().items():
        if entry.name == "phalanx-model" and not entry.has_ended:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if is_mine(process):
                    found.append(process)
    return found


def guards() -> list[psutil.Process]:
    """The guards of ranks of these tests; not those of warm pools, nor of models.

    They are not all below this process: those of a Python worker's pool outlive the worker that started it.
    """
    table = processes()
    found = []
    for pid, entry in table.items():
        if entry.name != "phalanx-guard" or entry.has_ended:
            continue
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if not is_mine(process):
                continue
            # Warm ranks have the pool's command line, too; their guard is the pool's child.
            below_it = [psutil.Process(child) for child in children(table, pid)]
            if any(child.name() == "phalanx-model" for child in below_it):
                continue
            has_pool = any("phalanx.warm_pool" in " ".join(child.cmdline()) for child in below_it)
            parent = table.get(entry.parent)
            if not has_pool or (parent is not None and parent.name == "phalanx-pool"):
                found.append(process)
    return found


def output_of(
    command: Sequence[str | Path], *, env: Mapping[str, str], within: float, folder: Path | None = None
) -> str:
    """What a program prints on stdout, which runs in `folder` and ends well in time."""
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=within,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def seen_by(
    command: Sequence[str | Path], folder: Path, *, env: Mapping[str, str], within: float
) -> dict[str, Any]:
    """What a program of tests/apps saw over each stage; its output is in `folder`/out."""
    with Program(command, folder / "out", env=env) as program:
        assert program.ends(within) == 0, program.text
        return dict(program.printed("SEEN"))


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
        self._looked = time.monotonic()
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

    def printed(self, word: str) -> Any:
        """The JSON after this word, on the one line that begins with it."""
        lines = [line for line in self.text.splitlines() if line.startswith(f"{word} ")]
        assert len(lines) == 1, f"not one line that begins with {word}: {self.text}"
        return json.loads(lines[0].removeprefix(word))

    def tree(self) -> list[psutil.Process]:
        """All processes that it has, or was seen to have, below it."""
        for pid in descendants(processes(), self.pid):
            if pid not in self._known:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._known[pid] = psutil.Process(pid)
        self._looked = time.monotonic()
        return list(self._known.values())

    def _look(self) -> None:
        """Notes what is below it, at times: each look reads what /proc has of all processes."""
        if time.monotonic() - self._looked > LOOK_EVERY_S:
            self.tree()

    def waits_for(self, what: str, within: float, is_so: Callable[[], Any]) -> Any:
        """As `eventually`, but it fails at once, with the output, if the program ends."""

        def ended_or_so() -> Any:
            found = is_so()
            if not found:
                self._look()
                assert self.process.poll() is None, f"ended before {what}:\n{self.text}"
            return found

        found = eventually(f"{what}; {self.out} has its output", within, ended_or_so)
        self.tree()
        return found

    def ends(self, within: float) -> int:
        """Waits for its end; the exit code."""

        def ended() -> bool:
            if self.process.poll() is not None:
                return True
            self._look()
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
