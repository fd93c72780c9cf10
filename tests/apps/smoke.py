"""A driver that tries the behaviour every user relies on, over each stage it is told; prints one line of JSON.

smoke.py RANKS STAGE...

DRIVER_CONF   the Spark settings as JSON, where they don't come from spark-submit
SMOKE_HUB    the only address at which the hub listens, whatever Spark's driver has
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import Any

NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
)  # fmt: skip


def place(scale: float) -> dict[str, Any]:
    """The sum of all ranks by gloo, and what the rank is told of its place."""
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.full((1000,), scale * (dist.get_rank() + 1))
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    print("the sum is", total[0].item())
    return {
        "sum": total[0].item(),
        "env": {name: os.environ[name] for name in NAMES if name in os.environ},
        "network": os.readlink("/proc/self/ns/net"),
    }


def fails() -> None:
    import os
    import time

    if os.environ["RANK"] == "1":
        raise KeyError("no such column")
    time.sleep(600)


def smoke(stage: str, ranks: int, spark: Any) -> dict[str, Any]:
    from phalanx import TorchDistributor, TrainingError

    spark.conf.set("spark.phalanx.stage", stage)
    distributor = TorchDistributor(num_processes=ranks, local_mode=False, use_gpu=False)
    seen: dict[str, Any] = {"results": distributor.start(place, 0.5).results(120)}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.py")
        with open(path, "w") as file:
            file.write("import sys, phalanx\nphalanx.set_result(sys.argv[1:])\n")
        seen["file"] = distributor.run(path, "--lr", 0.1)
    try:
        distributor.run(fails)
    except TrainingError as error:
        seen["failure"] = [error.kind, error.rank, repr(error.__cause__), "in fails" in error.traceback]
    return seen


def main() -> None:
    ranks, stages = int(sys.argv[1]), sys.argv[2:]
    from pyspark.sql import SparkSession

    conf = json.loads(os.environ.get("DRIVER_CONF", "{}"))
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if hub := os.environ.get("SMOKE_HUB"):
        from phalanx import run

        run.hub_endpoint = lambda _: (hub, hub)
    seen: dict[str, Any] = {}
    for stage in stages:
        try:
            seen[stage] = smoke(stage, ranks, spark)
        except Exception:
            seen[stage] = {"error": traceback.format_exc()}
    print("SMOKE", json.dumps(seen), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
