"""Ranks that outlive a test: processes that have torch, and run what tests hand to them as a process group.

They are forks of one process that imported it once, as multiprocessing's server of forks has it: alone it takes a rank
two seconds of processor time, and with the compiler, whose parts the first optimizer imports, twice as much.

A test hands over a function of a module; each rank calls it with a `Rank`, inside a group of the wanted backend, over
a store of our own server, as ranks of a job do.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# What the server has: a process with threads can't be forked, and OpenBLAS starts its own when numpy is imported.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
DEADLINE_SECONDS = 60.0
MOST = 4


@dataclass
class Rank:
    """What a test's function is told."""

    rank: int
    size: int
    backend: str
    port: int
    directory: Path


class RankError(AssertionError):
    """A rank's function raised; the text is its traceback."""


class Ranks:
    """Some processes; those that a test killed are replaced."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch", "torch._dynamo"])
        self._pool: list[tuple[Any, Connection]] = []

    def _ready(self, size: int) -> None:
        for process, connection in [entry for entry in self._pool if not entry[0].is_alive()]:
            connection.close()
            process.join()
            self._pool.remove((process, connection))
        while len(self._pool) < size:
            mine, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            with _variables(ONE_THREAD):
                process.start()
            theirs.close()
            self._pool.append((process, mine))

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        size: int = 2,
        backend: str = "phalanx",
        directory: Path | None = None,
        timeout: float = 30.0,
        may_die: bool = False,
        env: dict[str, str] | None = None,
    ) -> list[Any]:
        """What the function returned on each rank; what it raised on one is raised. None for a rank that died."""
        from phalanx._native import StoreServer

        self._ready(size)
        store = StoreServer()
        answers: list[tuple[str, Any]] = []
        try:
            for number, (_, connection) in enumerate(self._pool[:size]):
                rank = Rank(number, size, backend, store.port, directory or Path("."))
                connection.send((function, rank, args, timeout, env or {}))
            answers = [self._answer(entry) for entry in self._pool[:size]]
        finally:
            store.close()
            # Gloo's threads may abort a process long after it lost a peer, in the midst of the next test.
            if {kind for kind, _ in answers} != {"returned"}:
                self._end(self._pool[:size])
        problems = [f"rank {n}: {text}" for n, (kind, text) in enumerate(answers) if kind == "raised"]
        if not may_die:
            problems += [f"rank {n} died" for n, (kind, _) in enumerate(answers) if kind == "died"]
        if problems:
            raise RankError("\n".join(problems))
        return [value if kind == "returned" else None for kind, value in answers]

    def _answer(self, entry: tuple[Any, Connection]) -> tuple[str, Any]:
        process, connection = entry
        end = time.monotonic() + DEADLINE_SECONDS
        try:
            while not connection.poll(0.2):
                if time.monotonic() > end:
                    process.kill()
                    process.join()  # or the next run would take it for one that lives
                    return "raised", f"no answer in {DEADLINE_SECONDS:.0f} s"
                if not process.is_alive() and not connection.poll(0):
                    return "died", None
            answer: tuple[str, Any] = connection.recv()
            return answer
        except (EOFError, ConnectionResetError):
            return "died", None

    def _end(self, entries: list[tuple[Any, Connection]]) -> None:
        for process, connection in entries:
            connection.close()
            process.kill()
            process.join()
            self._pool.remove((process, connection))

    def close(self) -> None:
        for process, connection in self._pool:
            connection.close()
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        self._pool.clear()


@functools.cache
def shared() -> Ranks:
    """The one pool of all test modules."""
    pool = Ranks()
    atexit.register(pool.close)
    return pool


def _serve(connection: Connection) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            function, rank, args, timeout, env = connection.recv()
        except EOFError:
            os._exit(0)
        answer: tuple[str, Any]
        try:
            with _environment(rank, env), _group(rank, timeout):
                answer = "returned", function(rank, *args)
        except BaseException:
            answer = "raised", traceback.format_exc()
        sys.stdout.flush()
        connection.send(answer)


@contextlib.contextmanager
def _environment(rank: Rank, env: dict[str, str]) -> Iterator[None]:
    of_the_rank = {
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.size),
        "LOCAL_RANK": str(rank.rank),
        "LOCAL_WORLD_SIZE": str(rank.size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(rank.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    with _variables(of_the_rank | env):
        yield


@contextlib.contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _group(rank: Rank, timeout: float) -> Iterator[None]:
    import phalanx  # noqa: F401  (as a rank's entry does)
    import torch
    import torch.distributed as dist

    if rank.backend == "none":
        yield
        return
    torch.manual_seed(0)
    dist.init_process_group(rank.backend, timeout=timedelta(seconds=timeout))
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            dist.distributed_c10d._abort_process_group()
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
