"""The peers of `elastic.py`, which start the ranks of the same training again when some have gone, or come.

- torchrun of one node, with `--max-restarts`.
- torchrun of several nodes, as many as there are: here an agent each on this host, with one rank. They meet at the
  first one's store, so that one is never lost.
- Ray Train, where its environment is there (`--setup-peers`). Its workers have no node to lose here.

Horovod's last release, 0.28.1, doesn't build with torch 2.1 and later (horovod #3996).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import psutil
from data_peers import PEERS

HERE = Path(__file__).resolve().parent
RAY = next(peer for peer in PEERS if peer.name == "Ray")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--max-restarts=1000")
TRAINING = str(HERE / "elastic_training.py")
END_S = 30.0


def started(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills it with all that it has started."""
    with contextlib.suppress(psutil.Error):
        of_it = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for each in of_it:
            with contextlib.suppress(psutil.Error):
                each.send_signal(signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def trains_in(folder: str, *command: str) -> Iterator[None]:
    process = started(*command, folder)
    try:
        yield
    finally:
        Path(folder, "enough").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        kill(process)


def one_node(folder: str) -> contextlib.AbstractContextManager[None]:
    return trains_in(folder, *TORCHRUN, "--standalone", "--nproc-per-node=2", TRAINING)


def with_ray(folder: str) -> contextlib.AbstractContextManager[None]:
    return trains_in(folder, str(RAY.python), str(HERE / "peers" / "elastic_ray.py"))


class Nodes:
    """torchrun on `least` to `most` nodes; it begins with `most`."""

    def __init__(self, folder: str, least: int, most: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._store = free.getsockname()
        meet = f"--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{self._store[1]} --rdzv-id=bench --local-addr=127.0.0.1"
        self._command = (
            *TORCHRUN,
            f"--nnodes={least}:{most}",
            "--nproc-per-node=1",
            *meet.split(),
            TRAINING,
            folder,
        )
        self._agents: list[subprocess.Popen[bytes]] = []
        self._most = most

    def start(self, count: int) -> None:
        self._agents += [started(*self._command) for _ in range(count)]

    def kill(self, count: int) -> None:
        """Kills those that came last, with their ranks."""
        for _ in range(count):
            kill(self._agents.pop())

    def __enter__(self) -> Nodes:
        self.start(1)
        try:
            self._wait_for_store()
        except BaseException:
            self.kill(1)
            raise
        self.start(self._most - 1)
        return self

    def _wait_for_store(self) -> None:
        end = time.monotonic() + END_S
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(self._store):
                return
            if self._agents[0].poll() is not None or time.monotonic() > end:
                raise TimeoutError("torchrun's first node has no store")
            time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill(len(self._agents))
