"""How long an abort of a group of the `phalanx` backend takes: until `abort()` returns, and until the call that each
other rank waits in has failed.

    python tests/bench/abort.py [--quick | --reps N]

All ranks are processes on this host and read one clock. One of them aborts a group while the others are in an
all-reduce that it doesn't join. gloo's `abort` does nothing (pytorch #190731), so nothing stands beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ranks
from common import Report

SIZES = (2, 8)
PENDING_S = 0.1
"""After so long the others wait in their call."""


def aborts(rank: int, size: int, reps: int) -> Any:
    """Rank 0: of each repetition the seconds until `abort` returned, and until the last pending call had failed."""
    import torch
    import torch.distributed as dist

    taken = []
    for _ in range(reps):
        group: Any = dist.new_group(list(range(size)), backend="phalanx")
        dist.barrier(group)
        if rank == 0:
            time.sleep(PENDING_S)
            began = time.monotonic()
            group.abort()
            ended = time.monotonic()
        else:
            try:
                dist.all_reduce(torch.ones(1 << 20), group=group)
            except Exception:
                began = ended = time.monotonic()
            else:
                raise AssertionError("the all-reduce ended without rank 0")
        moments: list[Any] = [None] * size
        dist.all_gather_object(moments, (began, ended))
        taken.append((moments[0][1] - moments[0][0], max(at for _, at in moments[1:]) - moments[0][0]))
    return taken


def p95(values: list[float]) -> float:
    return sorted(values)[-(-95 * len(values) // 100) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="ten times")
    options = parser.parse_args()
    reps = 10 if options.quick else options.reps
    report = Report("abort")
    for size in SIZES:
        taken = ranks.run(aborts, size, reps)
        for at, metric in enumerate(("abort() returns", "the last pending call has failed")):
            times = [1000 * pair[at] for pair in taken]
            report.add("phalanx", f"{size} ranks", metric, "ms", times)
            report.add("phalanx", f"{size} ranks", f"{metric}, p95", "ms", [p95(times)])


if __name__ == "__main__":
    main()
