"""A training step of DistributedDataParallel on two CPU ranks: how much of it is communication that nothing hides.

    python tests/bench/ddp.py [--quick] [--reps N]

The same model, batches and processes for ours and gloo, one thread a rank. Blocks of steps with gradients averaged and
of steps without (`no_sync`) take turns, of both backends; `exposed` is the difference of their medians. Buckets of
25 MiB, as by default, with gradients copied into them and as views of them. `alone` is DDP in a group of one rank,
which exchanges nothing: its exposed part is DDP's own work on the buckets, whatever the backend. `cpu` is the processor
time of a step, of all threads, on the rank where it is more.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Report
from ranks import run

MODELS = ("MLP of 25 million", "CNN of 1.2 million")
BATCH = 64
WARM_UP = 3
LEAST_MS = 0.1  # less can't be told from noise, nor divided by


def network(name: str) -> tuple[Any, tuple[int, ...]]:
    from torch import nn

    if name.startswith("CNN"):
        convolutions = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        head = nn.Sequential(nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))
        return nn.Sequential(convolutions, head), (1, 28, 28)
    sizes = [1024, 4096, 4096, 1024]
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1024, 10)), (1024,)


def measure(
    rank: int, size: int, name: str, views: bool, blocks: int, steps: int
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of every step, and of its processor time, by backend; the greater of the ranks'."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    alone = [dist.new_group([one]) for one in range(size)][rank]
    groups = {"phalanx": dist.group.WORLD, "gloo": dist.new_group(backend="gloo"), "alone": alone}
    models, optimizers = {}, {}
    for impl, group in groups.items():
        torch.manual_seed(0)
        plain, shape = network(name)
        models[impl] = DistributedDataParallel(plain, process_group=group, gradient_as_bucket_view=views)
        optimizers[impl] = torch.optim.SGD(models[impl].parameters(), lr=0.01)
    torch.manual_seed(rank)
    inputs, targets = torch.randn(BATCH, *shape), torch.randint(0, 10, (BATCH,))

    def step(impl: str, synced: bool) -> tuple[float, float]:
        spent, began = time.process_time(), time.perf_counter()
        if synced:
            torch.nn.functional.cross_entropy(models[impl](inputs), targets).backward()
        else:
            with models[impl].no_sync():
                torch.nn.functional.cross_entropy(models[impl](inputs), targets).backward()
        optimizers[impl].step()
        optimizers[impl].zero_grad(set_to_none=False)
        return (time.perf_counter() - began) * 1e3, (time.process_time() - spent) * 1e3

    taken: dict[str, dict[str, list[float]]] = {
        impl: {kind: [] for kind in ("step", "no_sync", "step, cpu", "no_sync, cpu")} for impl in groups
    }
    for block in range(-1, blocks):
        for impl in groups:
            for kind in ("step", "no_sync"):
                dist.barrier(group=groups["gloo"])
                times = [step(impl, kind == "step") for _ in range(WARM_UP if block < 0 else steps)]
                slower = torch.tensor(times, dtype=torch.float64)
                dist.all_reduce(slower, op=dist.ReduceOp.MAX, group=groups["gloo"])
                if block >= 0:
                    for wall, cpu in slower.tolist():
                        taken[impl][kind].append(wall)
                        taken[impl][f"{kind}, cpu"].append(cpu)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps; ends within a minute or so")
    parser.add_argument("--reps", type=int, default=3, help="passes over everything, each with new processes")
    options = parser.parse_args()
    report = Report("ddp")
    blocks, steps = (2, 4) if options.quick else (4, 10)
    for name in MODELS:
        for views in (False, True):
            case = f"2 ranks, {name}{', bucket views' if views else ''}"
            exposed: dict[str, dict[str, list[float]]] = {"": {}, ", cpu": {}}
            every: dict[tuple[str, str], list[float]] = {}
            for _ in range(1 if options.quick else options.reps):
                for impl, kinds in run(measure, 2, name, views, blocks, steps).items():
                    medians = {kind: statistics.median(values) for kind, values in kinds.items()}
                    for metric in exposed:
                        more = medians[f"step{metric}"] - medians[f"no_sync{metric}"]
                        exposed[metric].setdefault(impl, []).append(max(more, LEAST_MS))
                    for kind, values in kinds.items():
                        every.setdefault((impl, kind), []).extend(values)
            for (impl, kind), values in every.items():
                report.add(impl, case, kind, "ms", values)
            for metric, impls in exposed.items():
                for impl, values in impls.items():
                    report.add(impl, case, f"exposed{metric}", "ms", values)
    report.table()


if __name__ == "__main__":
    main()
