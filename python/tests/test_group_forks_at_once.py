"""Forks of a rank at the same time as something else: another fork, a group that comes together, one that goes."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks

pytestmark = pytest.mark.timeout(120)

DEADLINE_SECONDS = 40.0
FORKS = 30
JOINS = 20


def beside_one_another(*works: Callable[[], Any]) -> list[Any]:
    """What they return, each on a thread of its own; one that hangs ends the rank, and so the test."""
    answers: list[Any] = [None] * len(works)

    def run(number: int, work: Callable[[], Any]) -> None:
        try:
            answers[number] = work()
        except BaseException as problem:
            answers[number] = problem

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + DEADLINE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
        assert not thread.is_alive(), f"a thread hangs for {DEADLINE_SECONDS:.0f} s"
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def forks() -> int:
    ended = 0
    for _ in range(FORKS):
        child = os.fork()
        if child == 0:
            os._exit(0)
        ended += os.waitpid(child, 0) == (child, 0)
    return ended


def all_reduced(rank: Rank) -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    return float(tensor[0])


def forks_from_two_threads(rank: Rank) -> Any:
    return beside_one_another(forks, forks), all_reduced(rank)


@pytest.mark.parametrize("size", [1, 2])
def test_two_threads_of_a_rank_fork_at_once(ranks: Ranks, size: int) -> None:
    # GROUP-33, GROUP-34
    assert ranks.run(forks_from_two_threads, size=size) == [([FORKS, FORKS], size)] * size


def loads_from_two_threads(rank: Rank) -> Any:
    import multiprocessing

    from torch.utils.data import DataLoader

    # A daemon, as the ranks of these tests are, may have no children; a rank of a job is none.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]

    # Workers of one hold pipes of the other's: each would wait for them, were the other still at it.
    both = threading.Barrier(2)

    def load() -> int:
        loader: DataLoader[int] = DataLoader(
            list(range(64)),  # type: ignore[arg-type]
            batch_size=4,
            num_workers=4,
            multiprocessing_context="fork",
            persistent_workers=True,
        )
        total = sum(int(batch.sum()) for _ in range(3) for batch in loader)
        both.wait(DEADLINE_SECONDS)
        return total

    return beside_one_another(load, load), all_reduced(rank)


@pytest.mark.parametrize("size", [1, 2])
def test_two_threads_of_a_rank_iterate_loaders_with_workers_at_once(ranks: Ranks, size: int) -> None:
    all_of_them = 3 * sum(range(64))
    assert ranks.run(loads_from_two_threads, size=size) == [([all_of_them, all_of_them], size)] * size


def of_groups() -> list[str]:
    """What this process has that may be a group's: streams, events, memory without a name. (The C library asks the
    kernel for addresses by sockets of its own, for a moment.)"""
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            link = os.readlink(f"/proc/self/fd/{descriptor}")
            if link.startswith("socket:"):
                with socket.socket(fileno=os.dup(descriptor)) as one:
                    if one.type != socket.SOCK_STREAM:
                        continue
        except FileNotFoundError:  # the one by which the folder was read
            continue
        found.append(link)
    kinds = ("socket:", "anon_inode:", "/memfd:phalanx")
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [link for link in found if link.startswith(kinds)] + [m for m in maps if "phalanx-collective" in m]


def told_by(fork: Callable[[], int], work: Callable[[], Any]) -> Any:
    """What `work` returns in a child that `fork` makes."""
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        answer = b"null"
        try:
            answer = json.dumps(work()).encode()
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        answer = json.load(told)
    os.waitpid(child, 0)
    return answer


def forks_while_groups_come_and_go(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    known = set(of_groups())
    is_over = threading.Event()

    def join() -> int:
        try:
            for _ in range(JOINS):
                group = dist.new_group()
                tensor = torch.ones(10)
                dist.all_reduce(tensor, group=group)
                dist.destroy_process_group(group)
        finally:
            is_over.set()
        return int(tensor[0])

    def fork() -> list[str]:
        children, too_much = 0, set()
        while not is_over.is_set() or children < 2:
            too_much.update(set(told_by(os.fork, of_groups)) - known)
            children += 1
        return sorted(too_much)

    return beside_one_another(join, fork, fork)


@pytest.mark.parametrize("size", [1, 2])
def test_a_child_that_is_forked_while_groups_come_together_or_go_has_nothing_of_them(
    ranks: Ranks, size: int
) -> None:
    # BINDING-5, GROUP-29, GROUP-30, GROUP-73
    assert ranks.run(forks_while_groups_come_and_go, size=size) == [[size, [], []]] * size


def forks_in_other_ways(rank: Rank) -> Any:
    known = of_groups()
    library = ctypes.PyDLL(None)
    reading, writing = os.pipe()

    def tell() -> None:
        os.write(writing, json.dumps(of_groups()).encode())

    subprocess.run(["true"], preexec_fn=tell, check=True)
    os.close(writing)
    with os.fdopen(reading) as told:
        of_subprocess = json.load(told)
    has = [told_by(library.fork, of_groups), of_subprocess, told_by(lambda: os.forkpty()[0], of_groups)]
    own = [link for link in known if any(link not in one for one in has)]
    return len(own), [[link for link in one if link in own] for one in has], all_reduced(rank)


def test_a_child_has_nothing_of_a_group_whoever_forked_it(ranks: Ranks) -> None:
    # BINDING-5, BACKEND-4: a library without Python's hooks, subprocess, a terminal.
    for count, left, summed in ranks.run(forks_in_other_ways):
        assert count > 0
        assert left == [[], [], []]
        assert summed == 2


def joins_in_a_child(rank: Rank) -> Any:
    import torch.distributed as dist

    def joins() -> Any:
        dist.destroy_process_group()
        before = set(of_groups())
        store = dist.FileStore(str(rank.directory / "store"), rank.size)
        dist.init_process_group("phalanx", store=store, rank=rank.rank, world_size=rank.size)
        own = set(of_groups()) - before
        left = own.intersection(told_by(os.fork, of_groups))
        answer = len(own), sorted(left), all_reduced(rank)
        dist.destroy_process_group()
        return answer

    return told_by(os.fork, joins), all_reduced(rank)


def test_a_child_that_joins_a_group_of_its_own_keeps_that_from_its_children(
    ranks: Ranks, tmp_path: Path
) -> None:
    # GROUP-29, GROUP-30, GROUP-36
    for (count, left, sum_in_child), summed in ranks.run(joins_in_a_child, directory=tmp_path):
        assert count > 0
        assert left == []
        assert (sum_in_child, summed) == (2, 2)
