"""What every benchmark shares: its lines, statistics, taking turns, processes with an end or for one figure alone.

A benchmark prints its machine, then one JSON object a line with exactly the keys of KEYS, then a table for
people.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
KEYS = ("bench", "impl", "case", "metric", "unit", "median", "min", "max", "n")


class Report:
    """The output of one benchmark. `ours` is compared with every other implementation of the same case."""

    def __init__(self, bench: str, ours: str = "phalanx") -> None:
        self.bench = bench
        self.ours = ours
        self.rows: list[dict[str, object]] = []
        self._refusals: list[str] = []
        print(json.dumps({"bench": bench, "machine": machine()}), flush=True)

    def add(self, impl: str, case: str, metric: str, unit: str, values: Iterable[float]) -> None:
        """Prints the statistics of some measurements. A unit ending in /s means that more is better."""
        ordered = sorted(values)
        median = statistics.median(ordered)
        row = dict(
            zip(
                KEYS,
                (self.bench, impl, case, metric, unit, median, ordered[0], ordered[-1], len(ordered)),
                strict=True,
            )
        )
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def refused(self, impl: str, case: str, metric: str, reason: str) -> None:
        """What an implementation says in place of figures; the table ends with it."""
        shown = reason if len(reason) <= 200 else reason[:200] + "..."
        self._refusals.append(f"{case}, {metric}: {impl} refused: {shown}")
        note(self._refusals[-1])

    def table(self) -> None:
        """Prints one line a case and peer: medians, ranges, their ratio, how many times as fast ours is."""
        head = ("case", "metric", self.ours, "[min-max]", "peer", "median", "[min-max]", "ratio", "speed")
        lines = [head]
        for row in self.rows:
            if row["impl"] == self.ours:
                continue
            same = [r for r in self.rows if r["impl"] == self.ours and same_case(r, row)]
            mine = same[0] if same else None
            lines.append(
                (
                    str(row["case"]),
                    f"{row['metric']} {row['unit']}",
                    short(mine["median"]) if mine else "-",
                    span(mine) if mine else "-",
                    str(row["impl"]),
                    short(row["median"]),
                    span(row),
                    f"{ratio(mine, row):.2f}" if mine else "-",
                    f"{speed(mine, row):.2f}x" if mine else "-",
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        print(f"\nratio: {self.ours} / peer, of the medians; speed: how many times as fast {self.ours} is")
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        for refusal in self._refusals:
            print(refusal)


def same_case(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return (one["case"], one["metric"]) == (other["case"], other["metric"])


def ratio(mine: Mapping[str, object], peer: Mapping[str, object]) -> float:
    ours, theirs = mine["median"], peer["median"]
    assert isinstance(ours, float | int)
    assert isinstance(theirs, float | int)
    return ours / theirs if theirs else float("nan")


def speed(mine: Mapping[str, object], peer: Mapping[str, object]) -> float:
    more_is_better = str(peer["unit"]).endswith("/s")
    return ratio(mine, peer) if more_is_better else 1 / ratio(mine, peer)


def span(row: Mapping[str, object]) -> str:
    return f"[{short(row['min'])}-{short(row['max'])}]"


def short(number: object) -> str:
    assert isinstance(number, float | int)
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"


def interleaved(runs: Mapping[str, Callable[[], T]], repetitions: int) -> dict[str, list[T]]:
    """Measures A B A B ..., so that a change of the machine's mood meets all alike."""
    values: dict[str, list[T]] = {impl: [] for impl in runs}
    for _ in range(repetitions):
        for impl, run in runs.items():
            values[impl].append(run())
    return values


def machine() -> dict[str, object]:
    """What a figure depends on besides the code."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": cpu(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "spark": version("pyspark"),
    }


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def build_example(package: str, example: str) -> Path:
    """A release build of a Rust example; the path of the program."""
    command = ["cargo", "build", "--release", "--quiet", "-p", package, "--example", example]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "examples" / example


def figures_of(program: Path, arguments: Sequence[object], timeout: float) -> Callable[[], dict[str, float]]:
    """Runs a program that prints its figures as one JSON object; seconds until it is given up."""

    def run() -> dict[str, float]:
        command = [program, *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
        figures: dict[str, float] = json.loads(result.stdout)
        return figures

    return run


class Served:
    """A process that prints its address and serves until its stdin ends."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            self.__exit__()
            raise RuntimeError(f"{command[0]} served nothing; its exit code is {self.process.returncode}")

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Quiet:
    """A stdout for the ranks' output, which is nobody's measure here."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def fresh_processes(
    bench: str,
    about: str | None,
    one: Callable[[str, str], dict[str, float]],
    cases: Mapping[str, Iterable[str]],
    metrics: Mapping[str, str],
) -> None:
    """A whole benchmark, each figure of which is taken in a process of its own: of the same program, by `one`.

    one       given an implementation and a case, the seconds of each metric
    cases     the implementations of each, which take turns
    metrics   their names in the report; an implementation may lack some
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repetition of each")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("IMPL", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if options.one:
        sys.stdout = Quiet()  # type: ignore[assignment]
        figures = one(*options.one)
        print(json.dumps(figures), file=sys.__stdout__, flush=True)
        return
    report = Report(bench)
    for case, impls in cases.items():
        runs = {impl: lambda impl=impl, case=case: _in_a_process(impl, case) for impl in impls}
        taken = interleaved(runs, 1 if options.quick else options.reps)
        for metric, name in metrics.items():
            for impl, rows in taken.items():
                if all(metric in row for row in rows):
                    report.add(impl, case, name, "s", [row[metric] for row in rows])
    report.table()


def _in_a_process(impl: str, case: str) -> dict[str, float]:
    command = [sys.executable, sys.argv[0], "--one", impl, case]
    # Ranks of pyspark's class import what they run.
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True, env=env)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def note(text: str) -> None:
    """A word to the reader that is not a figure."""
    print(text, file=sys.stderr, flush=True)
