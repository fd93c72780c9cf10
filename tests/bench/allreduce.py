"""All-reduce on CPU tensors: ours beside gloo, both through torch.distributed, in the same processes by turns.

    python tests/bench/allreduce.py [--quick] [--reps N] [--pinned]

Two and four ranks, one thread each, 4 KiB to 64 MiB. `one call` is the time of a call that all ranks begin together, of
the slowest rank; the two take turns, call by call. Ranks begin at an agreed instant, where each can have a processor
to wait for it on; else after a barrier of gloo's, which lets them go up to a time slice apart, and that counts. `in a
row` is many calls without anything between them; `cpu` the processor time that all ranks together spent on such a call,
waiting included. memcpy is what copying the message once in one thread takes: no all-reduce, a yardstick.

What the same collectives cost without torch is measured by `cargo bench -p phalanx-collective`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Report, short
from ranks import run

SIZES = {"4 KiB": 1 << 12, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "16 MiB": 1 << 24, "64 MiB": 1 << 26}
QUICK = ("4 KiB", "1 MiB", "16 MiB")
SECONDS = 2.0  # about what one size takes of each
Rows = list[tuple[str, str, str, list[float]]]


def measure(rank: int, size: int, dtype: str, sizes: dict[str, int], seconds: float) -> Rows:
    """All measurements of one world and type: implementation, case, metric, microseconds."""
    import torch
    import torch.distributed as dist

    groups = {"phalanx": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    control = dist.new_group(backend="gloo")
    kind = getattr(torch, dtype)
    rows: Rows = []
    for name, count in sizes.items():
        case = f"{size} ranks, {dtype}, {name}"
        tensor = torch.ones(count // kind.itemsize, dtype=kind)
        for group in groups.values():
            tensor.fill_(1)
            dist.all_reduce(tensor, group=group)
            assert bool((tensor == size).all()), "the sum is right"
        taken: dict[str, list[float]] = {impl: [] for impl in groups}
        calls = torch.tensor([_calls(tensor, groups["gloo"], seconds)])
        dist.broadcast(calls, 0, group=control)
        for _ in range(int(calls) + 2):
            for impl, group in groups.items():
                tensor.fill_(1)
                _begin_together(size, control)
                taken[impl].append(_timed(tensor, group, 1)[0])
        in_a_row: dict[str, list[float]] = {impl: [] for impl in groups}
        cpu: dict[str, list[float]] = {impl: [] for impl in groups}
        for _ in range(5):
            for impl, group in groups.items():
                tensor.fill_(0)  # sums of zeros stay numbers
                dist.barrier(group=control)
                wall, spent = _timed(tensor, group, max(2, int(calls) // 5))
                in_a_row[impl].append(wall)
                cpu[impl].append(spent)
        for impl in groups:
            for metric, values, how in (
                ("one call", taken[impl][2:], dist.ReduceOp.MAX),
                ("in a row", in_a_row[impl], dist.ReduceOp.MAX),
                ("cpu", cpu[impl], dist.ReduceOp.SUM),
            ):
                all_ranks = torch.tensor(values, dtype=torch.float64)
                dist.all_reduce(all_ranks, op=how, group=control)
                rows.append((impl, case, metric, (all_ranks * 1e6).tolist()))
        if rank == 0:
            other = torch.empty_like(tensor)
            copies = []
            for _ in range(20):
                began = time.perf_counter()
                other.copy_(tensor)
                copies.append((time.perf_counter() - began) * 1e6)
            rows.append(("memcpy", case, "one call", copies[2:]))
        dist.barrier(group=control)
    return rows


def _begin_together(size: int, group: Any) -> None:
    import torch
    import torch.distributed as dist

    dist.barrier(group=group)
    if size > len(os.sched_getaffinity(0)):
        return
    # The clock is the machine's.
    instant = torch.tensor([time.monotonic_ns() + 2_000_000])
    dist.broadcast(instant, 0, group=group)
    while time.monotonic_ns() < int(instant):
        pass


def _calls(tensor: Any, group: Any, seconds: float) -> int:
    """How many calls of the slower take about so long."""
    return max(5, min(400, int(seconds / max(_timed(tensor, group, 3)[0], 1e-6))))


def _timed(tensor: Any, group: Any, calls: int) -> tuple[float, float]:
    """Seconds of a call, and of processor time."""
    import torch.distributed as dist

    spent, began = time.process_time(), time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - began) / calls, (time.process_time() - spent) / calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls; ends within a minute or so")
    parser.add_argument("--reps", type=int, default=2, help="passes over everything, each with new processes")
    parser.add_argument("--pinned", action="store_true", help="each rank bound to a processor")
    options = parser.parse_args()
    report = Report("allreduce")
    sizes = {name: SIZES[name] for name in QUICK} if options.quick else SIZES
    for size in (2, 4):
        for dtype in ("float32", "bfloat16"):
            gathered: dict[tuple[str, str, str], list[float]] = {}
            for _ in range(1 if options.quick else options.reps):
                seconds = 0.2 if options.quick else SECONDS
                rows = run(measure, size, dtype, sizes, seconds, pinned=options.pinned)
                for impl, case, metric, values in rows:
                    gathered.setdefault((impl, case, metric), []).extend(values)
            for (impl, case, metric), values in gathered.items():
                report.add(impl, case, metric, "us", values)
    report.table()
    _bytes(report)


def _bytes(report: Report) -> None:
    """bfloat16 beside float32, a byte."""
    medians = {
        (row["impl"], row["case"]): row["median"] for row in report.rows if row["metric"] == "one call"
    }
    print("\nbfloat16 / float32, time for the same bytes")
    for (impl, case), median in medians.items():
        single = medians.get((impl, str(case).replace("bfloat16", "float32")))
        if "bfloat16" in str(case) and impl != "memcpy" and single:
            print(f"{case}  {impl}  {short(float(str(median)) / float(str(single)))}")


if __name__ == "__main__":
    main()
