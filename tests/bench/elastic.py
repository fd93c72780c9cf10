"""What a fault costs a training of 2.1 million parameters that saves each tenth step: seconds and steps.

    python tests/bench/elastic.py [--quick | --reps N] [--setup-peers] [--warm-imports NAMES]

A rank is killed; an executor is killed, and the other goes on alone; the run grows to two ranks again; Spark
decommissions an executor. In another run two of four executors are killed, and it grows to four again. Seconds are from
the kill, or Spark's word, to the first step after it; for a growth from the last step of the smaller run. By turns with
these the peers of `elastic_peers.py`. A peer that doesn't go on within two minutes is said to have refused.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import ROOT, Report
from data_peers import set_up
from elastic_peers import RAY, Nodes, one_node, with_ray
from elastic_training import SAVE_EACH, train

HERE = Path(__file__).resolve().parent
PATIENCE_S = 120.0
KILLED, LOST, GROWN = "a rank is killed", "an executor is killed, 2 to 1", "growth, 1 to 2"
DECOMMISSIONED = "an executor is decommissioned"
HALVED, DOUBLED = "two executors are killed, 4 to 2", "growth, 2 to 4"


class Step(NamedTuple):
    at: float
    number: int
    size: int


def steps_of(path: Path) -> list[Step]:
    """The steps that a rank has written down."""
    found = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):  # being written
            at, number, size = line.split()
            found.append(Step(float(at), int(number), int(size)))
    return found


def starts_of(folder: str, rank: int = 0) -> list[Path]:
    """A file for each start of a rank, the newest last."""
    return sorted(Path(folder).glob(f"steps-{rank}-*"), key=lambda path: path.stat().st_ctime)


def until(is_so: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        if time.monotonic() > end:
            raise TimeoutError("it did not come")
        time.sleep(0.02)
    return found


def trains(folder: str, size: int) -> None:
    """Waits until so many ranks have saved once since they started."""

    def has_saved() -> bool:
        newest = steps_of(starts_of(folder)[-1]) if starts_of(folder) else []
        return len(newest) > SAVE_EACH and newest[-1].size == size

    until(has_saved)


def cost(folder: str, size: int | None, harm: Callable[[], None] | None) -> tuple[float, float]:
    """Seconds and steps from `harm` on until so many ranks, or any, have made a step; without it since the last step
    before."""
    before, at = starts_of(folder), time.time()
    if harm is not None:
        harm()

    def new_steps() -> list[Step]:
        new = [path for path in starts_of(folder) if path not in before]
        return [step for path in new for step in steps_of(path)[:1] if size in (None, step.size)]

    first = until(new_steps)[0]
    last = max((step for path in before for step in steps_of(path)), key=lambda step: step.at)
    return first.at - (last.at if harm is None else at), float(max(0, last.number - first.number + 1))


def kill_rank(folder: str, rank: int) -> None:
    newest = starts_of(folder, rank)[-1]
    os.kill(int(newest.name.rpartition("-")[2]), signal.SIGKILL)


def executors() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
    return found


@contextlib.contextmanager
def folder_of_run() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield folder


Costs = dict[str, list[tuple[float, float]]]
"""Seconds and steps, by what happens."""

Started = Callable[[str], contextlib.AbstractContextManager[None]]
"""A peer that trains in a folder."""


@contextlib.contextmanager
def cluster(executors_of_it: int, warm_imports: str) -> Iterator[Any]:
    """A session of Spark with so many executors."""
    import phalanx
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local-cluster[{executors_of_it},1,1024]")
    for key, value in {
        **phalanx.spark_conf(),
        "spark.ui.enabled": "false",
        "spark.decommission.enabled": "true",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.phalanx.elastic.cooldown": "1s",
        "spark.phalanx.host.cooldown": "0",
        "spark.phalanx.warm.imports": warm_imports,
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        until(lambda: len(executors()) == executors_of_it)
        yield spark
    finally:
        spark.stop()


def decommission(spark: Any) -> None:
    """Has Spark decommission one of its executors."""
    jvm, context = spark.sparkContext._jvm, spark.sparkContext._jsc.sc()
    why = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("benchmark", jvm.scala.Option.empty())
    newest = max(context.schedulerBackend().getExecutorIds().mkString(",").split(","), key=int)
    context.schedulerBackend().decommissionExecutor(newest, why, False, False)


def ours(spark: Any, taken: Costs) -> None:
    import phalanx

    distributor = phalanx.TorchDistributor(
        num_processes=(1, 2), local_mode=False, use_gpu=False, max_restarts=1000
    )
    with folder_of_run() as folder:
        run = distributor.start(train, folder)
        trains(folder, 2)
        taken[KILLED].append(cost(folder, 2, lambda: kill_rank(folder, 1)))
        trains(folder, 2)
        taken[LOST].append(cost(folder, 1, lambda: executors()[-1].kill()))
        taken[GROWN].append(cost(folder, 2, None))
        trains(folder, 2)
        taken[DECOMMISSIONED].append(cost(folder, None, lambda: decommission(spark)))
        trains(folder, 2)
        Path(folder, "enough").touch()
        run.result(PATIENCE_S)


def ours_of_four(taken: Costs) -> None:
    import phalanx

    def kill_two() -> None:
        for process in executors()[-2:]:
            process.kill()

    distributor = phalanx.TorchDistributor(
        num_processes=(2, 4), local_mode=False, use_gpu=False, max_restarts=1000
    )
    with folder_of_run() as folder:
        run = distributor.start(train, folder)
        trains(folder, 4)
        taken[HALVED].append(cost(folder, 2, kill_two))
        taken[DOUBLED].append(cost(folder, 4, None))
        Path(folder, "enough").touch()
        run.result(PATIENCE_S)


@contextlib.contextmanager
def or_refuses(report: Report, name: str, case: str) -> Iterator[None]:
    """Ends what a peer has to show where it makes no step any more."""
    try:
        yield
    except TimeoutError:
        report.refused(name, case, "until the next step", f"not within {PATIENCE_S:g} s")


def rank_of_a_peer(report: Report, name: str, started: Started, taken: Costs) -> None:
    with folder_of_run() as folder, started(folder), or_refuses(report, name, KILLED):
        trains(folder, 2)
        taken[KILLED].append(cost(folder, 2, lambda: kill_rank(folder, 1)))


def nodes_of_a_peer(report: Report, most: int, taken: Costs) -> None:
    """Half of the nodes of torchrun are killed, and come again."""
    less, more = (LOST, GROWN) if most == 2 else (HALVED, DOUBLED)
    with folder_of_run() as folder, Nodes(folder, most // 2, most) as nodes:
        with or_refuses(report, "torchrun", less):
            trains(folder, most)
            taken[less].append(cost(folder, most // 2, lambda: nodes.kill(most // 2)))
        with or_refuses(report, "torchrun", more):
            trains(folder, most // 2)
            nodes.start(most // 2)
            taken[more].append(cost(folder, most, None))


def tell(report: Report, impl: str, costs: Costs) -> None:
    for case, pairs in costs.items():
        if pairs:
            report.add(impl, case, "until the next step", "s", [seconds for seconds, _ in pairs])
            report.add(impl, case, "steps lost", "steps", [steps for _, steps in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="once")
    parser.add_argument("--setup-peers", action="store_true", help="installs Ray beside, if it isn't there")
    parser.add_argument("--warm-imports", default="", metavar="NAMES", help="as the setting: torch._dynamo")
    options = parser.parse_args()
    if options.setup_peers:
        set_up([RAY.name])
    reps = 1 if options.quick else options.reps
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "python"), str(HERE), os.environ.get("PYTHONPATH", "")]
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    report = Report("elastic")
    cases = (KILLED, LOST, GROWN, DECOMMISSIONED, HALVED, DOUBLED)
    peers: dict[str, Started] = {"torchrun": one_node} | ({"Ray Train": with_ray} if RAY.is_there else {})
    mine: Costs = {case: [] for case in cases}
    theirs: dict[str, Costs] = {name: {case: [] for case in cases} for name in peers}
    for executors_of_it in (2, 4):
        with cluster(executors_of_it, options.warm_imports) as spark:
            for _ in range(reps):
                nodes_of_a_peer(report, executors_of_it, theirs["torchrun"])
                if executors_of_it == 4:
                    ours_of_four(mine)
                    continue
                for name, started in peers.items():
                    rank_of_a_peer(report, name, started, theirs[name])
                ours(spark, mine)
    for name, costs in theirs.items():
        tell(report, name, costs)
    tell(report, "phalanx", mine)
    report.table()


if __name__ == "__main__":
    main()
