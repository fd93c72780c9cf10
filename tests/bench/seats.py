"""A gang of tasks by the thousand: what its seats, a Spark job each, cost the driver while they wait.

    python tests/bench/seats.py [--quick]

There is no slot for any of 1,000 seats: how long until Spark's scheduler has all, what they take then, and how long
until none is left once the run is cancelled. Shares are of one core. `no jar` is a driver without it. Each figure is
taken in a process of its own, and all take turns. A barrier stage is one job, however many of its tasks wait.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Quiet, Report, interleaved
from launch import nothing, quiet_builder

SEATS = 1000
LOOKED_AT_S = 5.0
MIB = 1 << 20
GROWS = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "1",
    "spark.executor.cores": "1",
}
METRICS = {
    "submitted_s": ("until all are submitted", "s"),
    "python_threads": ("threads more of Python", "threads"),
    "jvm_threads": ("threads more of Spark's JVM", "threads"),
    "python_mib": ("memory more of Python", "MiB"),
    "heap_mib": ("heap more of Spark's JVM", "MiB"),
    "python_share": ("Python, while they wait", "cores"),
    "jvm_share": ("Spark's JVM, while they wait", "cores"),
    "cancelled_s": ("from cancel until no job is left", "s"),
}


class Driver:
    """This process and its JVM."""

    def __init__(self, spark: Any) -> None:
        self._jvm = next(child for child in psutil.Process().children() if child.name() == "java")
        self._java = spark.sparkContext._jvm.java.lang

    def takes(self) -> dict[str, float]:
        self._java.System.gc()
        runtime = self._java.Runtime.getRuntime()
        return {
            "python_threads": threading.active_count(),
            "jvm_threads": self._jvm.num_threads(),
            "python_mib": psutil.Process().memory_info().rss / MIB,
            "heap_mib": (runtime.totalMemory() - runtime.freeMemory()) / MIB,
        }

    def seconds(self) -> tuple[float, float]:
        """Processor time of both."""
        jvm = self._jvm.cpu_times()
        return time.process_time(), jvm.user + jvm.system


def until(is_so: Callable[[], bool], seconds: float = 300) -> float:
    """How long it took."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"it is not so after {seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began


def waits(stage: str, *, jar: bool = True) -> dict[str, float]:
    import phalanx
    from phalanx.request import preflight

    preflight.check_slots = lambda *_: None  # it knows how far this cluster can grow
    conf = (phalanx.spark_conf() if jar else {}) | GROWS | {"spark.phalanx.stage": stage}
    spark = quiet_builder("local-cluster[1,1,1024]").config(map=conf).getOrCreate()
    context = spark.sparkContext
    hold = context.parallelize([0], 1).map(lambda _: time.sleep(600))
    threading.Thread(target=lambda: _quietly(hold.collect), daemon=True).start()
    pool = context._jsc.sc().taskScheduler().rootPool()
    until(lambda: int(pool.runningTasks()) == 1)
    driver = Driver(spark)
    before = driver.takes()
    run = phalanx.TorchDistributor(num_processes=SEATS, local_mode=False, use_gpu=False).start(nothing)
    figures = {"submitted_s": until(lambda: int(pool.schedulableQueue().size()) == SEATS + 1)}
    time.sleep(2)  # Spark has begun to wait, too
    began, (python, jvm) = time.monotonic(), driver.seconds()
    time.sleep(LOOKED_AT_S)
    took, (python_then, jvm_then) = time.monotonic() - began, driver.seconds()
    figures |= {"python_share": (python_then - python) / took, "jvm_share": (jvm_then - jvm) / took}
    figures |= {name: value - before[name] for name, value in driver.takes().items()}
    began = time.monotonic()
    run.cancel()
    until(lambda: run.done and int(pool.schedulableQueue().size()) == 1)
    figures["cancelled_s"] = time.monotonic() - began
    context.cancelAllJobs()
    spark.stop()
    return figures


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # it is cancelled in the end
        return


IMPLS = {
    "jvm stage": functools.partial(waits, "jvm"),
    "python stage": functools.partial(waits, "python"),
    "python stage, no jar": functools.partial(waits, "python", jar=False),
}


def in_a_process(impl: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", impl]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one repetition of each")
    parser.add_argument("--one", metavar="IMPL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if options.one:
        sys.stdout = Quiet()  # type: ignore[assignment]
        print(json.dumps(IMPLS[options.one]()), file=sys.__stdout__, flush=True)
        return
    report = Report("seats", ours="jvm stage")
    runs = {impl: functools.partial(in_a_process, impl) for impl in IMPLS}
    for impl, rows in interleaved(runs, 1 if options.quick else 3).items():
        for key, (metric, unit) in METRICS.items():
            report.add(impl, f"{SEATS:,} seats wait", metric, unit, [row[key] for row in rows])


if __name__ == "__main__":
    main()
