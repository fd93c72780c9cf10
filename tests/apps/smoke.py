"""A driver that tries the behaviour every user relies on, over each stage it is told; prints one line of JSON.

smoke.py RANKS STAGE...

DRIVER_CONF   the Spark settings as JSON, where they don't come from spark-submit
SMOKE_HUB    the only address at which the hub listens, whatever Spark's driver has
LAST_HOST    where there are two hosts, that they are fed: the name of one whose executor is killed at the end
"""

from __future__ import annotations

import glob
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "ENVIRONMENT", "CONTAINER_ID",
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


def feed() -> dict[str, Any]:
    """Two epochs of the data set: the rows, and where their blocks were."""
    import os
    import socket

    import phalanx

    data = phalanx.data("train")
    loader = data.loader(batch_size=16, shuffle=True, seed=3, uneven="pad")
    epochs = [[i for batch in loader for i in batch["id"][batch["mask"]].tolist()] for _ in range(2)]
    source = data._source
    names = os.listdir(os.path.join(os.environ["PHALANX_RANK_DIR"], "fetched"))
    return {
        "epochs": epochs,
        "host": socket.gethostname(),
        "blocks": source._index.hosts,
        "near": sum(block.file not in source._far_files for block in source._index.blocks),
        "far": sum(block.file in source._far_files for block in source._index.blocks),
        "shared": sum(name.startswith("block-") for name in names),
        "left": [name for name in os.listdir(os.environ["PHALANX_RANK_DIR"]) if name.startswith("block-")],
    }


def feed_late(folder: str, early: str) -> int:
    """The ranks of one host end at once, and nothing of them is left when the others begin to read: how many rows."""
    import os
    import socket
    import time

    import phalanx

    if socket.gethostname() == early:
        with open(f"{folder}/.{os.environ['RANK']}", "w") as file:
            file.write(str(os.getpid()))
        os.rename(file.name, f"{folder}/{os.environ['RANK']}")
        return 0
    ended: list[str] = []
    while len(ended) < 2 or any(os.path.exists(f"/proc/{pid}") for pid in ended):
        time.sleep(0.05)
        ended = [
            Path(f"{folder}/{name}").read_text() for name in os.listdir(folder) if not name.startswith(".")
        ]
    return sum(len(batch["id"]) for batch in phalanx.data("train").loader(batch_size=10))


def feed_through_a_loss(folder: str, lost: str) -> list[int]:
    """All ranks save where they are after three steps, and take two more. Then rank 1 or its executor is killed, and
    the next attempt goes on from what was saved: the rows that count."""
    import json
    import os
    import signal
    import time

    import phalanx
    import psutil

    rank, is_first = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    loader = phalanx.data("train").loader(batch_size=16, shuffle=True, seed=5, uneven="pad")
    hosts = set(phalanx.data("train")._source._index.hosts)
    assert not is_first or len(hosts) == 2, "both hosts have blocks; later a new executor may be late"
    # In the first attempt rank 0 may have saved before the others look.
    saved, rows = None if is_first else phalanx.checkpoint.latest(), []
    assert is_first or saved is not None
    if saved is not None:
        loader.load_state_dict(saved[1]["data"])
        with open(f"{folder}/{rank}") as file:
            rows = json.load(file)
    for step, batch in enumerate(loader, 1):
        rows += batch["id"][batch["mask"]].tolist()
        if is_first and step == 3:
            with open(f"{folder}/.{rank}", "w") as file:
                json.dump(rows, file)
            os.rename(file.name, f"{folder}/{rank}")
            if rank == "0":
                phalanx.checkpoint.save({"data": loader.state_dict()}, step)
        if is_first and step == 5:
            break
    if not is_first:
        return rows
    while rank == "1":
        if len(glob.glob(f"{folder}/[0-9]")) == int(os.environ["WORLD_SIZE"]) and phalanx.checkpoint.latest():
            above = [
                one.pid for one in psutil.Process().parents() if "CoarseGrained" in " ".join(one.cmdline())
            ]
            os.kill(os.getpid() if lost == "rank" else above[0], signal.SIGKILL)
        time.sleep(0.05)
    time.sleep(600)
    raise AssertionError("nobody was killed")


def feed_for_ever(folder: str) -> None:
    import os
    import socket

    import phalanx
    import psutil

    above = [one.pid for one in psutil.Process().parents() if "CoarseGrained" in " ".join(one.cmdline())]
    with open(f"{folder}/.{os.environ['RANK']}", "w") as file:
        file.write(f"{socket.gethostname()} {above[0]}")
    os.rename(file.name, f"{folder}/{os.environ['RANK']}")
    while True:
        for _ in phalanx.data("train").loader(batch_size=16):
            pass


def lost(distributor: Any, data: Any) -> list[Any]:
    """What is said where an executor is killed that serves blocks, with its ranks and all."""
    import signal
    import time

    from phalanx import TrainingError

    with tempfile.TemporaryDirectory() as folder:
        run = distributor.start(feed_for_ever, folder, data=data)
        until = time.monotonic() + 120
        while (
            len(glob.glob(f"{folder}/*")) < distributor.num_processes
            and not run.done
            and time.monotonic() < until
        ):
            time.sleep(0.05)
        told = [Path(path).read_text().split() for path in glob.glob(f"{folder}/*")]
        for executor in {int(pid) for host, pid in told if host == os.environ["LAST_HOST"]}:
            os.kill(executor, signal.SIGKILL)
        try:
            run.result(120)
        except TrainingError as error:
            print("the loss:", error)
            return [error.kind, error.rank, str(error)]
    return []


def resumed(ranks: int, data: Any, lost: str) -> list[list[int]]:
    """What each rank had of one epoch, of which there were two attempts."""
    from phalanx import TorchDistributor

    with tempfile.TemporaryDirectory() as folder:
        distributor = TorchDistributor(
            ranks, local_mode=False, use_gpu=False, max_restarts=1, checkpoint_dir=f"{folder}/saved"
        )
        rows: list[list[int]] = distributor.start(feed_through_a_loss, folder, lost, data=data).results(120)
    return rows


def smoke(stage: str, ranks: int, spark: Any) -> dict[str, Any]:
    from phalanx import TorchDistributor, TrainingError

    spark.conf.set("spark.phalanx.stage", stage)
    distributor = TorchDistributor(num_processes=ranks, local_mode=False, use_gpu=False)
    seen: dict[str, Any] = {"results": distributor.start(place, 0.5).results(120)}
    data = {"train": spark.range(0, 4000, 1, 8)}
    if "LAST_HOST" in os.environ:
        seen["fed"] = distributor.start(feed, data=data).results(120)
        with tempfile.TemporaryDirectory() as folder:
            seen["late"] = distributor.start(feed_late, folder, os.environ["LAST_HOST"], data=data).results(
                120
            )
        seen["resumed"] = {loss: resumed(ranks, data, loss) for loss in ("rank", "executor")}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.py")
        with open(path, "w") as file:
            file.write("import sys, phalanx\nphalanx.set_result(sys.argv[1:])\n")
        seen["file"] = distributor.run(path, "--lr", 0.1)
    try:
        distributor.run(fails)
    except TrainingError as error:
        seen["failure"] = [error.kind, error.rank, repr(error.__cause__), "in fails" in error.traceback]
        print("the failure:", error)
    if stage == "jvm" and "LAST_HOST" in os.environ:
        seen["lost"] = lost(distributor, data)
    return seen


def main() -> None:
    ranks, stages = int(sys.argv[1]), sys.argv[2:]
    from pyspark.sql import SparkSession

    conf = json.loads(os.environ.get("DRIVER_CONF", "{}"))
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if hub := os.environ.get("SMOKE_HUB"):
        from phalanx import distributor

        distributor.hub_endpoint = lambda *_: (hub, hub)
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
