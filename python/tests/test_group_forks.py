"""Forked children of ranks, as those of a DataLoader: what they have of the group, can do with it, and hide."""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks

pytestmark = pytest.mark.timeout(120)


def forked(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked child, or what it raised; the child ends as a program does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except RuntimeError as problem:
            answer = str(problem)
        os.write(writing, json.dumps(answer).encode())
        atexit._run_exitfuncs()
        gc.collect()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        answer = json.load(told)
    os.waitpid(child, 0)
    return answer


def sockets() -> list[str]:
    """What the descriptors of this process lead to, if it is sockets."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the one by which the folder was read
            continue
    return [link for link in found if link.startswith("socket:")]


def shared_memory() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "phalanx-collective" in line]


def forks_and_goes_on(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    # What tests before this one left as garbage ends here: gloo's groups wait for their threads, which a child has not.
    gc.collect()
    before = set(sockets())
    group = dist.new_group()
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=group, async_op=True).wait()  # the group has a thread now
    own = set(sockets()) - before
    assert own
    assert shared_memory()
    has_of_the_group = forked(lambda: [*own.intersection(sockets()), *shared_memory()])
    told = [
        forked(lambda: dist.all_reduce(tensor, group=group).is_completed()),  # type: ignore[union-attr]
        forked(lambda: dist.all_reduce(tensor, group=group, async_op=True).is_completed()),  # type: ignore[union-attr]
        forked(lambda: dist.send(tensor, 1 - rank.rank, group=group)),
    ]
    forked(dist.destroy_process_group)
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    # Numbers that were the group's are another file's now, which a child is to keep.
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    is_kept = forked(lambda: all(os.fstat(descriptor) for descriptor in kept))
    for descriptor in kept:
        os.close(descriptor)
    return has_of_the_group, told, is_kept, os.getpid(), tensor.tolist()


def test_a_forked_child_has_nothing_of_the_group_and_is_told_so_and_the_group_goes_on(ranks: Ranks) -> None:
    # BINDING-5, BACKEND-4, GROUP-73
    for has_of_the_group, told, is_kept, process, sums in ranks.run(forks_and_goes_on):
        assert has_of_the_group == []
        for text in told:
            assert f"belongs to process {process}, from which this one was forked" in text
        assert is_kept
        assert sums == [4.0] * 10


def dies_and_leaves_a_child(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1_000_000)
    dist.all_reduce(tensor)
    if rank.rank == 1:
        if os.fork() == 0:
            end = time.monotonic() + 60
            while not (rank.directory / "told").exists() and time.monotonic() < end:
                time.sleep(0.02)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        dist.all_reduce(tensor)
    seconds = time.monotonic() - began
    (rank.directory / "told").touch()
    return str(raised.value), seconds


def test_a_killed_rank_is_noticed_at_once_though_a_child_that_it_forked_lives_on(
    ranks: Ranks, tmp_path: Path
) -> None:
    (text, seconds), _ = ranks.run(dies_and_leaves_a_child, directory=tmp_path, may_die=True)
    assert "rank 1 died" in text
    assert seconds < 10
