"""A driver whose elastic run trains until FOLDER has the file `enough`. Prints one line of JSON.

enduring.py FOLDER LEAST MOST RESTARTS

DRIVER_CONF   the Spark settings as JSON

It keeps FOLDER/at, the last step that rank 0 has told, and FOLDER/pid-PID of each rank that it has had. For each file
FOLDER/decommission-CHANCE that comes it has Spark decommission an executor.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH = 64
# Whatever ends a rank here, all start again.
ANY_CAUSE = ["lost_node", "signal", "hang", "exception", "exit_code", "start"]


def keep_digits(folder: str) -> None:
    import torch
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    torch.save((torch.tensor(images) / 16, torch.tensor(labels)), Path(folder, "digits"))


def fresh(folder: str) -> tuple[Any, ...]:
    import torch

    torch.manual_seed(1)
    layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    net = torch.nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    return net, optimizer, *torch.load(os.path.join(folder, "digits"))


def take(
    net: Any,
    optimizer: Any,
    images: Any,
    labels: Any,
    step: int,
    rank: int = 0,
    size: int = 1,
    add: Callable[[Any], Any] = lambda tensor: None,
) -> float:
    """Takes a step, and returns the loss of its batch, of which each rank computes a part. The batch is told by the
    step's number. So the losses are those of one process, whatever the ranks are, if no step is lost or taken twice."""
    import torch

    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(len(images), (BATCH,), generator=generator)[rank::size]
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(images[rows]), labels[rows], reduction="sum") / BATCH
    loss.backward()
    for parameter in net.parameters():
        add(parameter.grad)
    optimizer.step()
    total = loss.detach()
    add(total)
    return float(total)


def train(folder: str) -> tuple[list[float], list[int]]:
    """The losses of all steps, and with how many ranks it was begun each time."""
    import phalanx
    import torch
    import torch.distributed as dist
    from phalanx import checkpoint

    Path(folder, f"pid-{os.getpid()}").touch()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    net, *others = fresh(folder)
    losses: list[float] = []
    sizes: list[int] = []
    saved = checkpoint.latest()
    if saved is not None:
        losses, sizes = saved[1]["losses"], saved[1]["sizes"]
        net.load_state_dict(saved[1]["net"])
    sizes = [*sizes, size]

    def state() -> dict[str, Any]:
        return {"net": net.state_dict(), "losses": losses, "sizes": sizes}

    while True:
        step = len(losses)
        checkpoint.save_if_preempted(state, step)
        is_enough = torch.tensor([float(rank == 0 and os.path.exists(os.path.join(folder, "enough")))])
        dist.all_reduce(is_enough)
        if is_enough:
            return losses, sizes
        losses.append(take(net, *others, step, rank, size, dist.all_reduce))
        phalanx.report(step=step)
        if step % 5 == 0 and rank == 0:
            checkpoint.save(state(), step + 1)
        time.sleep(0.02)


def undisturbed(folder: str, steps: int) -> tuple[list[float], float]:
    """The losses of so many steps in one process, and how many of the digits the net knows then."""
    net, optimizer, images, labels = fresh(folder)
    losses = [take(net, optimizer, images, labels, step) for step in range(steps)]
    return losses, float((net(images).argmax(1) == labels).double().mean())


def decommission(spark: Any, chance: random.Random) -> None:
    jvm, backend = spark.sparkContext._jvm, spark.sparkContext._jsc.sc().schedulerBackend()
    why = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("chaos", jvm.scala.Option.empty())
    there = [number for number in backend.getExecutorIds().mkString(",").split(",") if number]
    if there:
        backend.decommissionExecutor(chance.choice(there), why, False, False)


def endure(spark: Any, folder: str, least: int, most: int, restarts: int) -> dict[str, Any]:
    from phalanx import TorchDistributor

    keep_digits(folder)
    run = TorchDistributor(
        num_processes=(least, most),
        local_mode=False,
        use_gpu=False,
        checkpoint_dir=folder,
        max_restarts=restarts,
        restart_on=ANY_CAUSE,
        grace=2,
    ).start(train, folder)
    while not run.done and not Path(folder, "enough").exists():
        for asked in Path(folder).glob("decommission-*"):
            decommission(spark, random.Random(asked.name))
            asked.unlink()
        if 0 in run.reports:
            at = Path(folder, "at.new")
            at.write_text(str(run.reports[0]["step"]))
            at.rename(Path(folder, "at"))
        time.sleep(0.1)
    losses, sizes = run.result(180)
    expected, accuracy = undisturbed(folder, len(losses))
    off = max(abs(one - other) for one, other in zip(losses, expected, strict=True))
    restarts = run.snapshot()["restarts"]
    return {"steps": len(losses), "off": off, "accuracy": accuracy, "sizes": sizes, "restarts": restarts}


def main() -> None:
    from pyspark.sql import SparkSession

    _, folder, *numbers = sys.argv
    spark = SparkSession.builder.config(map=json.loads(os.environ["DRIVER_CONF"])).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    answer = endure(spark, folder, *map(int, numbers))
    until = time.monotonic() + 30
    while (left := list(spark.sparkContext.statusTracker().getActiveJobsIds())) and time.monotonic() < until:
        time.sleep(0.1)
    print("ENDURED", json.dumps({**answer, "jobs": left}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
