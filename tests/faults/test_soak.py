"""Three hundred short runs in one driver, a fault in every third: at its end the application holds what it held before.

Most runs are in local mode; every tenth goes over a Spark stage, the python and the jvm one in turn.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from phalanx import TorchDistributor, TrainingError
from support.programs import below, eventually
from support.tiers import whole
from support.usage import Usage, named

pytestmark = [pytest.mark.timeout(420), whole("many runs")]

RUNS, SETTLED = 300, 60
# What memory may grow by between the runs that warm everything up and the last one. Garbage of the JVMs' is in theirs:
# a leak of 100 KB a run would be 24 MB.
GROWTH_MB = {"the driver": 16, "its JVM": 160, "an executor": 160, "a pool": 16, "a Python worker": 24}


class Fault(NamedTuple):
    train: Callable[..., Any]
    kind: str | None
    """Of the error; None where the run ends well all the same."""
    meanwhile: Callable[[Any], None] | None = None
    """What is done to the run once both ranks run."""


def kill_a_pool(_run: Any) -> None:
    """The driver's own: ranks that run go on without it, and the next run has another."""
    processes = named(below(os.getpid()))
    pools = [p for p, name in processes if name == "phalanx-pool"]
    jvms = {p.pid for p, name in processes if name == "java"}
    mine = [p for p in pools if not jvms & {parent.pid for parent in p.parents()}]
    assert mine, "the ranks that run came from a pool"
    for pool in mine:
        pool.kill()


def faults() -> list[Fault]:
    """In turn. A pool takes seconds to come back, so only one in twenty-five kills it."""

    def well(folder: str) -> str:
        import os

        return os.environ["RANK"]

    def raises(folder: str) -> None:
        import os
        import time

        if os.environ["RANK"] == "1":
            raise KeyError("the soak's")
        time.sleep(600)

    def exits(folder: str) -> None:
        import os
        import sys
        import time

        if os.environ["RANK"] == "1":
            sys.exit(3)
        time.sleep(600)

    def is_killed(folder: str) -> None:
        import os
        import signal
        import time

        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    def waits_for_the_end(folder: str) -> None:
        import os
        import time

        open(f"{folder}/runs-{os.environ['RANK']}", "w").close()
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.02)

    def leaves_a_grandchild(folder: str) -> None:
        import subprocess

        subprocess.Popen(["setsid", "sleep", "600"])

    def returns_what_does_not_pickle(folder: str) -> object:
        import threading

        return threading.Lock()

    def closes_its_output(folder: str) -> None:
        import os

        os.close(1)
        os.close(2)

    def dies_in_a_collective(folder: str) -> None:
        import contextlib
        import os
        import time

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if os.environ["RANK"] == "1":
            os._exit(4)
        with contextlib.suppress(RuntimeError):
            dist.all_reduce(torch.ones(100_000))
        time.sleep(600)

    several = [
        Fault(raises, "exception"),
        Fault(exits, "exit_code"),
        Fault(is_killed, "signal"),
        Fault(waits_for_the_end, "cancelled", lambda run: run.cancel()),
        Fault(leaves_a_grandchild, None),
        Fault(returns_what_does_not_pickle, "exception"),
        Fault(closes_its_output, None),
        Fault(dies_in_a_collective, "exit_code"),
    ]
    return [Fault(well, None), *several * 3, Fault(waits_for_the_end, None, kill_a_pool)]


def test_three_hundred_runs_with_a_fault_in_every_third_leave_nothing(spark: Any, tmp_path: Path) -> None:
    well, *bad = faults()
    next_fault = itertools.cycle(bad)
    stages = itertools.cycle(["python", "jvm"])
    before = None
    for i in range(RUNS):
        if i == SETTLED:
            before = Usage(spark)
        fault = next(next_fault) if i % 3 == 2 else well
        over = next(stages) if i % 10 == 5 and fault.meanwhile is not kill_a_pool else None
        folder = tmp_path / str(i)
        folder.mkdir()
        run_once(fault, over, spark, folder)
    assert before is not None
    growth: list[str] = []

    def as_before() -> bool:
        now = Usage(spark)
        growth[:] = now.growth(before) + now.memory_growth(before, GROWTH_MB)
        return not growth

    try:
        eventually("as much as after the first runs", 60, as_before)
    except AssertionError:
        pytest.fail(f"more than after {SETTLED} runs: {growth}")


def run_once(fault: Fault, over: str | None, spark: Any, folder: Path) -> None:
    if over is not None:
        spark.conf.set("spark.phalanx.stage", over)
    try:
        distributor = TorchDistributor(2, local_mode=over is None, use_gpu=False)
        run = distributor.start(fault.train, str(folder))
        if fault.meanwhile is not None:
            eventually("both ranks run", 60, lambda: len(list(folder.glob("runs-*"))) == 2)
            fault.meanwhile(run)
            if fault.kind is None:
                (folder / "go").touch()
        try:
            run.result(120)
            kind = None
        except TrainingError as error:
            kind = error.kind
    finally:
        spark.conf.unset("spark.phalanx.stage")
    assert kind == fault.kind, f"{fault.train.__name__} over {over or 'local mode'}"
