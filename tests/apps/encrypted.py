"""A driver of a cluster with encryption: trains over each stage, and tries gloo. Prints one line of JSON.

encrypted.py RANKS OTHER_HOST

DRIVER_CONF   the Spark settings as JSON
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

KEY, VALUE, END = "a-key-of-the-store", "a-value-of-the-store", "the-sniffer-may-end"


def train(key: str, value: str) -> dict[str, Any]:
    """The sum of all ranks, and where the rank finds the store, to which it gives a word a hundred times."""
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("phalanx")
    rank = dist.get_rank()
    total = torch.full((1000,), float(rank + 1))
    dist.all_reduce(total)
    store = dist.distributed_c10d._get_default_store()
    for number in range(100):
        store.set(f"{key} {rank} {number}", value)
    dist.barrier()
    others = [store.get(f"{key} {other} 99").decode() for other in range(dist.get_world_size())]
    first = rank // 2 * 2  # each host has two
    for host in range(0, dist.get_world_size(), 2):
        dist.new_group([host, host + 1], backend="gloo" if host == first else "phalanx")
    dist.barrier()  # gloo takes a peer that has gone, while another still forms their group, for a broken one
    dist.destroy_process_group()
    return {
        "sum": total[0].item(),
        "others": others,
        "master": os.environ["MASTER_ADDR"],
        "network": os.readlink("/proc/self/ns/net"),
    }


def plain() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def main() -> None:
    ranks, other_host = int(sys.argv[1]), sys.argv[2]
    from phalanx import TorchDistributor, TrainingError
    from pyspark.sql import SparkSession

    conf = json.loads(os.environ["DRIVER_CONF"])
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    seen: dict[str, Any] = {}
    try:
        distributor = TorchDistributor(num_processes=ranks, local_mode=False, use_gpu=False)
        for stage in ("python", "jvm"):
            spark.conf.set("spark.phalanx.stage", stage)
            seen[stage] = distributor.start(train, KEY, VALUE).results(120)
        try:
            distributor.run(plain)
        except TrainingError as error:
            seen["gloo"] = [error.kind, str(error.__cause__)]
    finally:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.sendto(END.encode(), (other_host, 9))
    print("SEEN", json.dumps(seen), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
