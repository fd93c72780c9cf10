"""How long a run takes to get anywhere: ours over each stage beside pyspark's TorchDistributor, in one session.

    python tests/bench/launch.py [--quick] [--reps N] [--gangs]

Two ranks, warm (forked from a process that has imported torch), and `cold` (every rank is a new process that imports
torch, as pyspark's are). Seconds from the call of `.run()` to the first line of
user code, to the process group, to the first all-reduce, each of the slower rank, and to the return. An empty job is
one whose ranks do nothing: `/bin/true` through the Scala API, an empty function elsewhere. All take turns.

Gangs of tasks, which `--gangs` measures alone, run beside barrier stages on executors that are there. Where there are
none yet, they come for a run (dynamic allocation) or for a job of two tasks of Spark's own, and go before the next.

`command` is `phalanx run` beside torchrun, each from the start of a process to its end, without Spark.
`phalanx` is the jvm stage, or local mode; `python stage` is the same class over that stage. Spark is warmed: session,
executors, the JVMs' compilers by some runs of each stage. Python workers have pandas and pyarrow, also after a run of
pyspark's class, whose workers Spark ends: it leaves their input unread.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Quiet, Report, note

EMPTY_JOB_BAR_S, SOONER_BAR_S = 0.20, 0.1
WARMING_RUNS = 10
METRICS = {"first": "first line", "group": "process group", "reduced": "first all-reduce"}
GROWS = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.executor.cores": "1",
}


def probe(folder: str) -> None:
    import time

    first = time.monotonic()
    import json
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    group = time.monotonic()
    dist.all_reduce(torch.ones(1024))
    reduced = time.monotonic()
    with open(os.path.join(folder, os.environ["RANK"]), "w") as file:
        json.dump({"first": first, "group": group, "reduced": reduced}, file)
    dist.barrier()


def quiet_builder(master: str = "local-cluster[2,1,1024]") -> Any:
    """Of a session that shows nothing and stays on the loopback."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.GLOO_SOCKET_IFNAME", "lo")
    )


def await_executors(spark: Any) -> None:
    """Until both executors have registered."""
    while executors(spark) < 2:
        time.sleep(0.05)


def executors(spark: Any) -> int:
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def session() -> Any:
    import phalanx

    spark = quiet_builder().config(map=phalanx.spark_conf()).getOrCreate()
    for _ in range(4):
        warm_workers(spark)
    return spark


def warm_workers(spark: Any) -> None:
    """Has Python workers ready on both executors."""
    spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long", barrier=True).collect()


class Over:
    """A distributor that takes the stage and the gang that it is told."""

    def __init__(self, stage: str, distributor: Any, gang: str = "auto") -> None:
        self.distributor = distributor
        self._stage, self._gang = stage, gang

    def run(self, *what: Any) -> Any:
        self.distributor.spark.conf.set("spark.phalanx.stage", self._stage)
        self.distributor.spark.conf.set("spark.phalanx.gang", self._gang)
        return self.distributor.run(*what)


def command(*words: str) -> dict[str, float]:
    """One run of a file by this command, which ends with the file: seconds from its start to each point."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.py")
        file.write_text(f"{inspect.getsource(probe)}\nimport sys\nprobe(sys.argv[1])\n")

        def run(told: str) -> None:
            full = [sys.executable, "-m", *words, str(file), told]
            subprocess.run(full, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

        return timed(run)


def measure(distributor: Any) -> dict[str, float]:
    """One run: seconds from the call to each point."""
    return timed(functools.partial(distributor.run, probe))


def timed(run: Callable[[str], object]) -> dict[str, float]:
    """A run whose ranks write into the folder that it is given when they got where."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        run(folder)
        returned = time.monotonic() - began
        ranks = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    assert len(ranks) == 2, "both ranks report"
    return {metric: max(rank[metric] for rank in ranks) - began for metric in METRICS} | {
        "returned": returned
    }


def empty(run: Callable[[], object]) -> dict[str, float]:
    began = time.monotonic()
    run()
    return {"returned": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one repetition of each; ends within a minute or so"
    )
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--gangs", action="store_true", help="gangs of tasks and barrier stages only")
    options = parser.parse_args()
    repetitions = 1 if options.quick else options.reps
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger().addHandler(logging.NullHandler())

    from phalanx import TorchDistributor
    from pyspark.ml.torch.distributor import TorchDistributor as Incumbent

    report = Report("launch")
    warm_gangs(report, repetitions, quick=options.quick)
    cold_gangs(report, repetitions, quick=options.quick)
    if options.gangs:
        return
    spark = session()
    new = {"num_processes": 2, "local_mode": False, "use_gpu": False}
    over = {stage: Over(stage, TorchDistributor(**new)) for stage in ("jvm", "python")}
    cold = Over("jvm", TorchDistributor(**new, warm=False))
    sys.stdout = Quiet()  # type: ignore[assignment]
    for _ in range(1 if options.quick else WARMING_RUNS):
        for distributor in over.values():
            measure(distributor)  # the first starts the pools
    sys.stdout = sys.__stdout__
    incumbent = Incumbent(**new)

    def then_warm(figures: dict[str, float]) -> dict[str, float]:
        warm_workers(spark)
        return figures

    scala = spark.sparkContext._jvm.dev.phalanx.spark.TorchDistributor(2, False, False)

    take_turns(
        report,
        "2 empty ranks, local-cluster",
        {
            "phalanx": lambda: empty(lambda: scala.runProgram(["/bin/true"])),
            "python stage": lambda: empty(lambda: over["python"].run(nothing)),
            "pyspark": lambda: then_warm(empty(lambda: incumbent.run(nothing))),
        },
        repetitions,
        quick=options.quick,
    )
    take_turns(
        report,
        "2 ranks, local-cluster",
        {
            "phalanx": lambda: measure(over["jvm"]),
            "python stage": lambda: measure(over["python"]),
            "cold": lambda: measure(cold),
            "pyspark": lambda: then_warm(measure(incumbent)),
        },
        repetitions,
        quick=options.quick,
    )
    phases("2 ranks, local-cluster, jvm stage", over["jvm"].distributor)
    phases("2 ranks, local-cluster, python stage", over["python"].distributor)
    new["local_mode"] = True
    local, local_cold, local_incumbent = (
        TorchDistributor(**new),
        TorchDistributor(**new, warm=False),
        Incumbent(**new),
    )
    measure(local)
    take_turns(
        report,
        "2 ranks, local mode",
        {
            "phalanx": lambda: measure(local),
            "cold": lambda: measure(local_cold),
            "pyspark": lambda: measure(local_incumbent),
        },
        repetitions,
        quick=options.quick,
    )
    phases("2 ranks, local mode", local)
    spark.stop()
    two = ("--nproc-per-node", "2")
    take_turns(
        report,
        "2 ranks, a command",
        {
            "phalanx": lambda: command("phalanx", "run", *two),
            "cold": lambda: command("phalanx", "run", *two, "--no-warm"),
            "torchrun": lambda: command("torch.distributed.run", *two),
        },
        repetitions,
        quick=options.quick,
    )
    report.table()
    bars(report)


def warm_gangs(report: Report, repetitions: int, *, quick: bool) -> None:
    """Gangs of tasks and barrier stages, on executors that are there."""
    import phalanx

    spark = session()
    of = phalanx.TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    over = {
        f"{stage} stage, {gang}": Over(stage, of, gang)
        for stage in ("jvm", "python")
        for gang in ("tasks", "barrier")
    }
    warm = {name: functools.partial(measure, each) for name, each in over.items()}
    sys.stdout = Quiet()  # type: ignore[assignment]
    for _ in range(1 if quick else WARMING_RUNS):
        for run in warm.values():
            run()
    sys.stdout = sys.__stdout__
    take_turns(report, "2 ranks on executors that are there", warm, 2 * repetitions, quick=quick)
    spark.stop()


def cold_gangs(report: Report, repetitions: int, *, quick: bool) -> None:
    """Gangs of tasks for which executors come."""
    import phalanx

    spark = quiet_builder().config(map=phalanx.spark_conf() | GROWS).getOrCreate()
    of = phalanx.TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)

    def run_of(stage: str) -> dict[str, float]:
        await_none(spark)
        figures = measure(Over(stage, of))
        [there] = [phase.seconds for phase in of.last_run.phases if phase.name == "all joined"]
        return figures | {"there": there}

    cold = {f"{stage} stage, tasks": functools.partial(run_of, stage) for stage in ("jvm", "python")}
    cold["a job of Spark's"] = lambda: sleeping_job(spark)
    take_turns(report, "2 ranks, no executors yet", cold, repetitions, quick=quick)
    spark.stop()


def sleeping_job(spark: Any) -> dict[str, float]:
    """How long executors take that Spark starts for a job of two tasks."""
    await_none(spark)
    began = time.monotonic()
    sleeps = spark.sparkContext.parallelize(range(2), 2)
    job = threading.Thread(target=sleeps.foreach, args=(lambda _: time.sleep(1),))
    job.start()
    await_executors(spark)
    there = time.monotonic() - began
    job.join()
    return {"there": there}


def await_none(spark: Any) -> None:
    while executors(spark) > 0:
        time.sleep(0.05)


def nothing() -> None:
    pass


def take_turns(
    report: Report,
    case: str,
    runs: dict[str, Callable[[], dict[str, float]]],
    repetitions: int,
    *,
    quick: bool = False,
) -> None:
    """Measures each in turn, the first time for nothing unless it is to be quick, and reports every metric."""
    taken: dict[str, list[dict[str, float]]] = {impl: [] for impl in runs}
    stdout = sys.stdout
    for repetition in range(1 if quick else repetitions + 1):
        for impl, run in runs.items():
            sys.stdout = Quiet()  # type: ignore[assignment]
            try:
                figures = run()
            finally:
                sys.stdout = stdout
            if repetition > 0 or quick:
                taken[impl].append(figures)
    for metric, name in [("there", "all tasks there"), *METRICS.items(), ("returned", "return")]:
        for impl, rows in taken.items():
            if metric in rows[0]:
                report.add(impl, case, name, "s", [row[metric] for row in rows])


def phases(case: str, distributor: Any) -> None:
    note(f"{case}, the last run of phalanx by phase:")
    for phase in distributor.last_run.phases:
        rank = "" if phase.rank is None else f" (rank {phase.rank})"
        note(f"  {phase.seconds:8.3f} s  {phase.name}{rank}")


# Seconds of a warm run until it returns, and how many times sooner than pyspark's.
WARM_BARS = [
    ("phalanx", "2 ranks, local mode", 0.15, 30),
    ("phalanx", "2 ranks, local-cluster", 0.25, 40),
    ("python stage", "2 ranks, local-cluster", 0.40, 1),
]


def bars(report: Report) -> None:
    """What the jvm stage and warm ranks were built to reach, beside what they did."""

    def median(impl: str, case: str, metric: str) -> float:
        [row] = [r for r in report.rows if (r["impl"], r["case"], r["metric"]) == (impl, case, metric)]
        return float(row["median"])  # type: ignore[arg-type]

    empty_job = median("phalanx", "2 empty ranks, local-cluster", "return")
    sooner = median("python stage", "2 ranks, local-cluster", "first line") - median(
        "phalanx", "2 ranks, local-cluster", "first line"
    )
    note(f"an empty job over the jvm stage: {empty_job:.3f} s; the bar is at most {EMPTY_JOB_BAR_S} s")
    for impl, case, most_s, times in WARM_BARS:
        ours, peers = median(impl, case, "return"), median("pyspark", case, "return")
        note(f"{case}, {impl}, warm: {ours:.3f} s and {peers / ours:.0f} times as fast as pyspark")
        note(f"  the bars are {most_s} s and {times} times")
    note(f"first line sooner than over the python stage: {sooner:.3f} s; the bar is {SOONER_BAR_S} s")


if __name__ == "__main__":
    main()
