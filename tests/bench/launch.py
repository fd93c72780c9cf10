"""How long a run takes to get anywhere: ours beside pyspark's TorchDistributor, same function, same session.

    python tests/bench/launch.py [--quick] [--reps N]

Two ranks, cold (every rank is a new process that imports torch). Seconds from the call of `.run()` to the first line of
user code, to the process group, to the first all-reduce, each of the slower rank, and to the return. Spark is warmed:
session, executors, Python workers with pandas and pyarrow. The two take turns.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Report, note

METRICS = {"first": "first line", "group": "process group", "reduced": "first all-reduce"}


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


def session() -> Any:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.GLOO_SOCKET_IFNAME", "lo")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    for _ in range(4):
        spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long", barrier=True).collect()
    return spark


def measure(distributor: Any) -> dict[str, float]:
    """One run: seconds from the call to each point."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        distributor.run(probe, folder)
        returned = time.monotonic() - began
        ranks = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    assert len(ranks) == 2, "both ranks report"
    return {metric: max(rank[metric] for rank in ranks) - began for metric in METRICS} | {
        "returned": returned
    }


class Quiet:
    """A stdout for the ranks' output, which is nobody's measure here."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one repetition of each; ends within a minute or so"
    )
    parser.add_argument("--reps", type=int, default=5)
    options = parser.parse_args()
    repetitions = 1 if options.quick else options.reps
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger().addHandler(logging.NullHandler())

    from phalanx import TorchDistributor
    from pyspark.ml.torch.distributor import TorchDistributor as Incumbent

    report = Report("launch")
    spark = session()
    modes = (
        {"2 ranks, local-cluster": False}
        if options.quick
        else {
            "2 ranks, local-cluster": False,
            "2 ranks, local mode": True,
        }
    )
    stdout = sys.stdout
    for case, local_mode in modes.items():
        runs = {
            impl: cls(num_processes=2, local_mode=local_mode, use_gpu=False)
            for impl, cls in (("phalanx", TorchDistributor), ("pyspark", Incumbent))
        }
        taken: dict[str, list[dict[str, float]]] = {impl: [] for impl in runs}
        for repetition in range(repetitions + 1):
            for impl, distributor in runs.items():
                sys.stdout = Quiet()  # type: ignore[assignment]
                try:
                    figures = measure(distributor)
                finally:
                    sys.stdout = stdout
                if repetition > 0 or options.quick:
                    taken[impl].append(figures)
            if options.quick:
                break
        for metric, name in [*METRICS.items(), ("returned", "return")]:
            for impl, rows in taken.items():
                report.add(impl, case, name, "s", [row[metric] for row in rows])
        last = runs["phalanx"].last_run
        note(f"{case}, the last run of phalanx by phase:")
        for phase in last.phases:
            rank = "" if phase.rank is None else f" (rank {phase.rank})"
            note(f"  {phase.seconds:8.3f} s  {phase.name}{rank}")
    report.table()
    spark.stop()


if __name__ == "__main__":
    main()
