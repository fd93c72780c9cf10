"""What `elastic.py` measures: ranks that average gradients, save each tenth step, and write down when each step ended.

    elastic_training.py FOLDER

It is the same for every peer; only the checkpoint is written by whoever starts the ranks, where that has a way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

WIDTH = 1024
SAVE_EACH = 10


def save(folder: str, state: dict[str, Any], step: int) -> None:
    if "PHALANX_RANK_DIR" in os.environ:
        from phalanx import checkpoint

        checkpoint.save(state, step, directory=folder)
        return
    path = os.path.join(folder, "checkpoint.pt")
    torch.save({"step": step, "state": state}, path + ".part")
    os.replace(path + ".part", path)


def leave_if_told(folder: str, state: Callable[[], dict[str, Any]], step: int) -> None:
    """Saves and leaves where a host is to go, if somebody says so."""
    if "PHALANX_RANK_DIR" in os.environ:
        from phalanx import checkpoint

        checkpoint.save_if_preempted(state, step, directory=folder)


def latest(folder: str) -> tuple[int, dict[str, Any]] | None:
    if "PHALANX_RANK_DIR" in os.environ:
        from phalanx import checkpoint

        found: tuple[int, dict[str, Any]] | None = checkpoint.latest(directory=folder)
        return found
    try:
        told = torch.load(os.path.join(folder, "checkpoint.pt"))
    except FileNotFoundError:
        return None
    return told["step"], told["state"]


def train(folder: str) -> int:
    if not dist.is_initialized():  # Ray has done it
        dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    saved = latest(folder)
    step = 0
    if saved is not None:
        step, state = saved
        net.load_state_dict(state)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with open(os.path.join(folder, f"steps-{rank}-{os.getpid()}"), "a", buffering=1) as steps:
        while True:
            is_enough = torch.tensor([float(rank == 0 and os.path.exists(os.path.join(folder, "enough")))])
            dist.all_reduce(is_enough)
            if is_enough:
                return step
            leave_if_told(folder, net.state_dict, step)
            optimizer.zero_grad()
            model(torch.randn(32, WIDTH)).pow(2).mean().backward()
            optimizer.step()
            step += 1
            steps.write(f"{time.time()} {step} {size}\n")
            if rank == 0 and step % SAVE_EACH == 0:
                save(folder, net.state_dict(), step)


if __name__ == "__main__":
    train(sys.argv[1])
