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

import psutil
import pytest
from phalanx import TrainingError
from py4j.protocol import Py4JJavaError
from support.programs import alive, eventually, executors
from support.tiers import whole

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
    assert run.results(40) == ["rank 0 went on", "rank 1 went on"], "PROCESS-1, NODE-6"


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
        assert [rank.state for rank in caught.value.ranks] == ["stopped", "stopped"], "PROCESS-1, NODE-6"
        assert not alive(ranks)
    eventually("the executors are there", 20, lambda: len(executors(os.getpid())) == 2)


@whole("another phase")
@pytest.mark.alone
def test_a_cancel_is_answered_within_a_second_while_tasks_wait_for_one_another_in_spark(
    stage: Any, spark: Any, tmp_path: Path
) -> None:
    spark.conf.set("spark.phalanx.connectTimeout", "500ms")
    # Spark ends an executor whose Python task is cancelled inside `allGather`, and starts another one.
    stopped, waiting = eventually("both executors take tasks", 60, lambda: those_that_take_tasks(spark))
    stopped.suspend()
    try:
        run = stage.start(steps, str(tmp_path))
        eventually("a task waits in Spark for the one that isn't there", 60, lambda: in_barrier(waiting))
        began = time.monotonic()
        run.cancel("seen enough")
        with pytest.raises(TrainingError, match="seen enough"):
            run.result(40)
        assert time.monotonic() - began < 1, "JOIN-3"
    finally:
        spark.conf.unset("spark.phalanx.connectTimeout")
        stopped.resume()
    eventually("its slot is free", 40, lambda: not in_barrier(waiting))


def those_that_take_tasks(spark: Any) -> list[psutil.Process]:
    """The executors that ran a task each just now; none if they weren't two."""

    def own(_: Iterator[int]) -> Iterator[int]:
        """The process of the JVM: a Python worker's parent is a daemon, whose parent it is."""
        yield from [parent.pid for parent in psutil.Process().parents()[1:2]]

    # With too few slots for a barrier stage Spark looks again 15 s later. It knows of the driver and both, and of one
    # that has just ended.
    known = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
    if known < 3 or len(executors(os.getpid())) < 2:
        return []
    try:
        pids = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(own).collect()
    except Py4JJavaError:  # an executor left, or has not come yet
        return []
    return list(map(psutil.Process, pids)) if len(set(pids)) == 2 else []


def in_barrier(executor: psutil.Process) -> bool:
    """Whether a thread of the executor is in Spark's `allGather`."""
    shown = subprocess.run(
        ["jcmd", str(executor.pid), "Thread.print"], capture_output=True, text=True, timeout=30
    )
    return "BarrierTaskContext.runBarrier" in shown.stdout
