"""Many lines from two ranks: how fast they reach the caller, whether any is lost, what it costs in memory.

    python tests/bench/logs.py [--quick] [--lines N]

Each of two ranks on executors writes half of N numbered lines (60 bytes) as fast as it can; the caller's stdout is a
file. Checked for ours: every line is in the rank's file and in the live view, in order. Memory is the growth of the
peak resident set of the driver and of the larger Python worker (which hosts the supervisor), sampled every 20 ms.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Report, note
from launch import session


def chatter(lines: int) -> str:
    import os

    for i in range(lines):
        print(f"{i:09d} {'.' * 49}")
    return os.environ.get("PHALANX_RANK_DIR", "")


class Memory:
    """The peak resident sets of this process and of the Python workers below it, while it is open."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.driver = self.worker = 0
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Memory:
        self.before = psutil.Process().memory_info().rss
        self.workers_before = max((p.memory_info().rss for p in self._workers()), default=0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @staticmethod
    def _workers() -> list[psutil.Process]:
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if "pyspark.daemon" in process.cmdline():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _sample(self) -> None:
        workers = self._workers()
        while not self._over.wait(0.02):
            self.driver = max(self.driver, psutil.Process().memory_info().rss - self.before)
            for worker in workers:
                try:
                    self.worker = max(self.worker, worker.memory_info().rss - self.workers_before)
                except psutil.Error:
                    continue


def numbers_of(rank: int, text: Path) -> list[int]:
    """The numbers of a rank's lines in a live view, in the order in which they were shown."""
    prefix = f"[rank {rank}] "
    with text.open() as file:
        return [int(line[len(prefix) :][:9]) for line in file if line.startswith(prefix)]


def check_ours(results: list[str], view: Path, lines: int) -> None:
    for rank, folder in enumerate(results):
        job = Path(folder).parent.parent
        parts = [path for path in (job / f"rank-{rank}.log.1", job / f"rank-{rank}.log") if path.exists()]
        kept = [line[:9] for part in parts for line in part.read_text().splitlines()]
        assert kept == [f"{i:09d}" for i in range(lines)], f"rank {rank}: its file does not have every line"
        assert numbers_of(rank, view) == list(range(lines)), (
            f"rank {rank}: the live view does not have every line"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100,000 lines, one repetition")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--reps", type=int, default=3)
    options = parser.parse_args()
    lines, repetitions = (100_000, 1) if options.quick else (options.lines, options.reps)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logging.getLogger().addHandler(logging.NullHandler())

    from phalanx import TorchDistributor
    from pyspark.ml.torch.distributor import TorchDistributor as Incumbent

    report = Report("logs")
    spark = session()
    runs: dict[str, Any] = {
        impl: cls(num_processes=2, local_mode=False, use_gpu=False)
        for impl, cls in (("phalanx", TorchDistributor), ("pyspark", Incumbent))
    }
    case = f"{lines:,} lines, 2 ranks, local-cluster"
    speed: dict[str, list[float]] = {impl: [] for impl in runs}
    shown: dict[str, list[float]] = {impl: [] for impl in runs}
    memory: dict[tuple[str, str], list[float]] = {}
    stdout, stderr = sys.stdout, sys.stderr
    for distributor in runs.values():
        distributor.run(chatter, 10)  # not measured: the first run of each imports its modules
    for _ in range(repetitions):
        for impl, distributor in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                view = Path(folder) / "view"
                with view.open("w") as file, Memory() as peak:
                    # pyspark's class shows output on stderr.
                    sys.stdout = sys.stderr = file
                    began = time.monotonic()
                    try:
                        distributor.run(chatter, lines // 2)
                    finally:
                        sys.stdout, sys.stderr = stdout, stderr
                    took = time.monotonic() - began
                if impl == "phalanx":
                    check_ours(distributor.last_run.results(), view, lines // 2)
                with view.open() as file:
                    seen = sum("......" in line for line in file)
                speed[impl].append(lines / took)
                shown[impl].append(seen / lines)
                memory.setdefault((impl, "driver memory"), []).append(peak.driver)
                memory.setdefault((impl, "worker memory"), []).append(peak.worker)
    for impl in runs:
        report.add(impl, case, "lines shown", "1/s", speed[impl])
    for impl in runs:
        report.add(impl, case, "share of the lines that was shown", "1", shown[impl])
    for (impl, metric), values in memory.items():
        report.add(impl, case, metric, "bytes", values)
    note("phalanx: every line of both ranks was in the rank's file and in the live view, in order")
    report.table()
    spark.stop()


if __name__ == "__main__":
    main()
