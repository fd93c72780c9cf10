"""What becomes of a run while Java threads of an executor do nothing, or wait for one another."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phalanx import TrainingError
from support.programs import alive, eventually, executors

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("jcmd") is None, reason="there is no jcmd, which stops a JVM's threads"),
]


@contextlib.contextmanager
def standing_still(pid: int, folder: Path) -> Iterator[None]:
    """While this is open, no Java thread of the process runs; the pipe is in `folder`."""
    pipe = folder / f"heap-{pid}"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    dump = subprocess.Popen(
        ["jcmd", str(pid), "GC.heap_dump", "-overwrite", "-all", str(pipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(60, dump.kill)
    watchdog.start()
    try:
        # Its first bytes are written when the Java threads stand still.
        eventually("the JVM stands still", 20, lambda: select.select([reading], [], [], 0)[0])
        yield
        assert dump.poll() is None, f"the JVM went on: {dump.communicate()[0]}"
    finally:
        while dump.poll() is None:
            if select.select([reading], [], [], 0.02)[0]:
                os.read(reading, 1 << 20)
        watchdog.cancel()
        dump.communicate()
        os.close(reading)
        pipe.unlink()


NODE_TIMEOUT_S = 1.0


def steps(folder: str) -> str:
    """Counts until there is a file `go`, and says so."""
    import os
    import time
    from pathlib import Path

    import phalanx

    rank = os.environ["RANK"]
    (Path(folder) / f"pid-{rank}").write_text(str(os.getpid()))
    step = 0
    while not (Path(folder) / "go").exists():
        step += 1
        phalanx.report(step=step)
        time.sleep(0.05)
    return f"rank {rank} went on"


@pytest.fixture
def impatient(spark: Any) -> Iterator[Any]:
    """The session, whose runs take a node for lost that is silent for a second."""
    spark.conf.set("spark.phalanx.nodeTimeout", f"{NODE_TIMEOUT_S:g}s")
    yield spark
    spark.conf.unset("spark.phalanx.nodeTimeout")


def step_of_slowest(run: Any) -> int:
    told = dict(run.reports)
    return min((told[rank]["step"] for rank in told), default=0) if len(told) == 2 else 0


def heard_of_for(run: Any, seconds: float) -> None:
    """Waits until both ranks have told steps that they took so long after this was called."""
    since, first = time.monotonic(), step_of_slowest(run)
    eventually(
        "both ranks are heard of",
        30,
        lambda: time.monotonic() - since > seconds and step_of_slowest(run) > first + 10 * seconds,
    )


def test_ranks_go_on_and_are_heard_of_while_an_executors_jvm_stands_still(
    stage: Any, impatient: Any, tmp_path: Path
) -> None:
    run = stage.start(steps, str(tmp_path))
    eventually("both ranks run", 60, lambda: step_of_slowest(run) > 0)
    executor, _ = executors(os.getpid())
    with standing_still(executor.pid, tmp_path):
        heard_of_for(run, 3 * NODE_TIMEOUT_S)
    heard_of_for(run, 0.5)
    (tmp_path / "go").touch()
    assert run.results(40) == ["rank 0 went on", "rank 1 went on"], "NODE-30, NODE-44"


def test_ranks_end_at_a_cancel_while_their_executors_jvm_stands_still(
    stage: Any, impatient: Any, tmp_path: Path
) -> None:
    run = stage.start(steps, str(tmp_path))
    eventually("both ranks run", 60, lambda: step_of_slowest(run) > 0)
    ranks = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(2)]
    executor, _ = executors(os.getpid())
    with standing_still(executor.pid, tmp_path):
        run.cancel("seen enough")
        with pytest.raises(TrainingError, match="seen enough") as caught:
            run.result(40)
        assert [rank.state for rank in caught.value.ranks] == ["stopped", "stopped"], "NODE-30, NODE-44"
        assert not alive(ranks)
    eventually("the executors are there", 20, lambda: len(executors(os.getpid())) == 2)
