"""Ranks of a process group for benchmarks: processes that are started once, and a function that all of them run."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

from common import ROOT


def run(function: Callable[..., Any], size: int, *args: Any, pinned: bool = False) -> Any:
    """Runs `function(rank, size, *args)` on `size` new processes; what rank 0 returned.

    `pinned` binds each, with all its threads, to a processor, as MPI binds its ranks.
    """
    sys.path.insert(0, str(ROOT / "python"))
    from phalanx._native import StoreServer

    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    store = StoreServer()
    processes = [
        context.Process(target=_rank, args=(theirs, function, rank, size, store.port, pinned, *args))
        for rank in range(size)
    ]
    try:
        for process in processes:
            process.start()
        theirs.close()
        answer = mine.recv()
        for process in processes:
            process.join(30)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
        store.close()
    return answer


def _rank(
    answers: Any, function: Callable[..., Any], rank: int, size: int, port: int, pinned: bool, *args: Any
) -> None:
    if pinned:  # before any other thread exists
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
        OMP_NUM_THREADS="1",
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import phalanx  # noqa: F401  (as a rank's entry does)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("phalanx")
    value = function(rank, size, *args)
    if rank == 0:
        answers.send(value)
    dist.barrier()
    dist.destroy_process_group()
