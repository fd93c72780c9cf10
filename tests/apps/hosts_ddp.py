"""A rank of DDP on one of two hosts: `hosts_ddp.py RANK SIZE FOLDER`, where rank 0 leaves the port of its store.

Trains the same steps over phalanx and over gloo; then the last rank is killed, while a child that it forked lives on,
and the others say what they are told.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import phalanx  # noqa: F401  (as a rank's entry does)
import torch
import torch.distributed as dist
from phalanx._native import StoreServer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
PATIENCE_SECONDS = 60.0


def meet(rank: int, size: int, folder: Path) -> Any:
    """Joins the group, through a store on rank 0's host."""
    port = folder / "port"
    server = None
    if rank == 0:
        server = StoreServer(os.environ["MASTER_ADDR"])
        unfinished = folder / "port.unfinished"
        unfinished.write_text(str(server.port))
        unfinished.rename(port)
    end = time.monotonic() + PATIENCE_SECONDS
    while not port.exists():
        if time.monotonic() > end:
            raise TimeoutError("rank 0 has no store")
        time.sleep(0.02)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(port.read_text()),
        is_master=False,
        timeout=timedelta(seconds=PATIENCE_SECONDS),
    )
    patience = timedelta(seconds=PATIENCE_SECONDS)
    dist.init_process_group("phalanx", store=store, rank=rank, world_size=size, timeout=patience)
    return server


def network(group: Any) -> DistributedDataParallel:
    """Buckets of several sizes, short and long ones."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 256), nn.Tanh(), nn.Linear(256, 3))
    return DistributedDataParallel(plain, process_group=group, bucket_cap_mb=0.3)


def losses(rank: int, group: Any) -> list[float]:
    wrapped = network(group)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(17 + rank)
    found = []
    for _ in range(STEPS):
        inputs, targets = torch.randn(8, 64, generator=batches), torch.randint(0, 3, (8,), generator=batches)
        loss = nn.functional.cross_entropy(wrapped(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def leave_a_child(size: int, folder: Path) -> None:
    """Forks a child, as a DataLoader does, that lives until the others have been told."""
    if os.fork() == 0:
        wait_for_the_told(size, folder)
        os._exit(0)


def wait_for_the_told(size: int, folder: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not all((folder / f"death-{other}").exists() for other in range(size - 1)):
        if time.monotonic() > end:
            break
        time.sleep(0.02)


def told_of_a_death(rank: int, size: int, folder: Path) -> dict[str, Any]:
    wrapped = network(dist.group.WORLD)
    inputs = torch.randn(8, 64)
    for _ in range(2):
        wrapped(inputs).sum().backward()
    if rank == size - 1:
        leave_a_child(size, folder)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        for _ in range(3):
            wrapped(inputs).sum().backward()
    except RuntimeError as problem:
        return {"text": str(problem), "seconds": time.monotonic() - began}
    return {"text": "nothing", "seconds": 0.0}


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    server = meet(rank, size, folder)
    gloo = dist.new_group(backend="gloo")
    answer: dict[str, Any] = {"phalanx": losses(rank, dist.group.WORLD), "gloo": losses(rank, gloo)}
    (folder / f"losses-{rank}").write_text(json.dumps(answer))
    answer = told_of_a_death(rank, size, folder)
    (folder / f"death-{rank}").write_text(json.dumps(answer))
    if rank == 0:
        # The others' reading of the store is over when they have written.
        wait_for_the_told(size, folder)
        server.close()
    os._exit(0)  # gloo's threads would wait for the dead


if __name__ == "__main__":
    main()
