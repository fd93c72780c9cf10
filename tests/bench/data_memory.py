"""How much memory a run takes that is fed more than fits: by whom, and whether the driver's grows with the data.

    python tests/bench/data_memory.py [GB...]        by default 0.5 and 4

Spark's tasks make rows of 784 floats and a number, of which there is no other copy than the blocks. Two ranks on two
executors take one shuffled epoch in batches of 256, train nothing, and say which rows they had. Each size has a driver
of its own, whose processes are looked at ten times a second.

`resident` has the pages of mapped files in it, which the system takes back when it wants memory; `anonymous` is what is
the process's own. A rank's node is in the executor's JVM. Sizes are compared with the first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import ROOT, Report, note
from data import make
from launch import await_executors, quiet_builder

ROW_BYTES = 784 * 4 + 8
SAMPLE_S = 0.1
TIMEOUT_S = 1200
MB = 1e6


def take_epoch(folder: str) -> dict[str, float]:
    """One pass: how many rows, the sum of their labels, and the seconds."""
    import os
    import time

    import phalanx
    import torch

    torch.set_num_threads(1)
    with open(f"{folder}/{os.environ['RANK']}", "w") as file:
        file.write(str(os.getpid()))
    began, rows, labels = time.monotonic(), 0, 0
    for batch in phalanx.data("train").loader(batch_size=256, shuffle=True, seed=1):
        rows += len(batch["label"])
        labels += int(batch["label"].sum())
    return {"rows": rows, "labels": labels, "seconds": time.monotonic() - began}


def rows_of(gigabytes: float) -> int:
    """Steps of both ranks are whole, so that each row comes."""
    return int(gigabytes * 1e9) // ROW_BYTES // 512 * 512


def one(gigabytes: float, folder: str) -> None:
    """The driver of one size; prints what the ranks and the run say."""
    import phalanx
    from phalanx import TorchDistributor

    spark = quiet_builder().config(map=phalanx.spark_conf()).getOrCreate()
    await_executors(spark)
    rows = rows_of(gigabytes)
    frame = spark.range(0, rows, 1, max(4, int(8 * gigabytes)))
    frame = frame.mapInArrow(make("floats"), "x array<float>, label bigint")
    run = TorchDistributor(2, local_mode=False, use_gpu=False).start(
        take_epoch, folder, data={"train": frame}
    )
    ranks = run.results()
    assert sum(rank["rows"] for rank in ranks) == rows, "each row comes once"
    assert sum(rank["labels"] for rank in ranks) == rows * (rows - 1) // 2, "each row comes once"
    said = {
        "prepared": {phase.name: phase.seconds for phase in run.phases}["data prepared"],
        "epoch": max(rank["seconds"] for rank in ranks),
    }
    print(json.dumps(said), flush=True)
    spark.stop()


def role(process: Any, driver: int, ranks: dict[int, str]) -> str:
    if process.pid == driver:
        return "driver"
    if process.pid in ranks:
        return f"rank {ranks[process.pid]}"
    words = process.cmdline()
    if words and Path(words[0]).name == "java":
        executor = any("CoarseGrainedExecutorBackend" in word for word in words)
        return "an executor's JVM, with the node" if executor else "driver's JVM"
    return "all others together"


def memory(pid: int) -> tuple[int, int]:
    """Resident and anonymous bytes of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident, anonymous = (int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
    return resident, anonymous


def on_disk(folder: str) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


class Peaks:
    """The most that each role had of memory, and the local directories of the disk."""

    def __init__(self, driver: int, told: str, local: str) -> None:
        self.resident: dict[str, int] = defaultdict(int)
        self.anonymous: dict[str, int] = defaultdict(int)
        self.disk = 0
        self._driver, self._told, self._local = driver, told, local
        self._samples = 0

    def look(self) -> None:
        import psutil

        ranks = {int(path.read_text() or 0): path.name for path in Path(self._told).iterdir()}
        resident: dict[str, int] = defaultdict(int)
        anonymous: dict[str, int] = defaultdict(int)
        with contextlib.suppress(psutil.NoSuchProcess):
            above = psutil.Process(self._driver)
            for process in [above, *above.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess, OSError, KeyError):
                    name = role(process, self._driver, ranks)
                    sizes = memory(process.pid)
                    if name.startswith("all"):
                        resident[name] += sizes[0]
                        anonymous[name] += sizes[1]
                    else:
                        resident[name] = max(resident[name], sizes[0])
                        anonymous[name] = max(anonymous[name], sizes[1])
        for name, size in resident.items():
            self.resident[name] = max(self.resident[name], size)
            self.anonymous[name] = max(self.anonymous[name], anonymous[name])
        if self._samples % 10 == 0:
            self.disk = max(self.disk, on_disk(self._local))
        self._samples += 1


def measure(gigabytes: float, report: Report) -> None:
    place = ROOT / "target"
    free = shutil.disk_usage(place).free
    if free < 1.3e9 * gigabytes:
        raise SystemExit(
            f"{gigabytes} GB need {1.3 * gigabytes:.1f} GB of disk, and {free / 1e9:.1f} are free"
        )
    with (
        tempfile.TemporaryDirectory(dir=place) as local,
        tempfile.TemporaryDirectory(dir=place) as told,
    ):
        env = os.environ | {"SPARK_LOCAL_DIRS": local, "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, __file__, "--one", str(gigabytes), told]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        peaks, until = Peaks(process.pid, told, local), time.monotonic() + TIMEOUT_S
        while process.poll() is None:
            if time.monotonic() > until:
                process.kill()
            peaks.look()
            time.sleep(SAMPLE_S)
        assert process.stdout is not None
        text = process.stdout.read()
        if process.returncode:
            raise SystemExit(f"the run with {gigabytes} GB ended with {process.returncode}: {text}")
        left = on_disk(local)
    impl, rows = f"{gigabytes:g} GB", rows_of(gigabytes)
    for name in sorted(peaks.resident):
        report.add(impl, name, "peak resident", "MB", [peaks.resident[name] / MB])
        report.add(impl, name, "peak anonymous", "MB", [peaks.anonymous[name] / MB])
    report.add(impl, "disk", "peak of local directories", "MB", [peaks.disk / MB])
    said = json.loads(text.splitlines()[-1])
    note(
        f"{impl}: {rows} rows of {rows * ROW_BYTES / MB:.0f} MB, each of which came once; blocks after "
        f"{said['prepared']:.1f} s, epoch {said['epoch']:.1f} s; on the disk afterwards {left / MB:.1f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gigabytes", nargs="*", type=float, default=[0.5, 4.0])
    parser.add_argument("--one", nargs=2, metavar=("GB", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if options.one:
        one(float(options.one[0]), options.one[1])
        return
    report = Report("data_memory", ours=f"{options.gigabytes[0]:g} GB")
    for gigabytes in options.gigabytes:
        measure(gigabytes, report)
    report.table()


if __name__ == "__main__":
    main()
