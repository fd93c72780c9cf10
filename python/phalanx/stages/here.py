"""Where a node in Python is: what `_native.run_node` is told of its task and of its machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Here(NamedTuple):
    """What only the task knows."""

    partition: int
    task: tuple[int, int, int]
    """Spark's stage id, task attempt id and attempt number; 0 where there is no task."""
    host: str
    """The machine's name: equal for tasks on the same machine."""
    gpus: Sequence[str] | None
    """The addresses of those that Spark gave the task, None where it gave none."""
    work_dir: str
    """Where logs and the ranks' private files go."""
    env: dict[str, str]
    """What only this machine knows of the ranks' variables."""
    tunnel: str | None = None
    """Another way to the hub, through Spark's messages, for a node that can't connect to it: host:port."""
    relay: str | None = None
    """The same through the Spark Connect server."""


class Home(NamedTuple):
    """Phalanx and Python on this machine."""

    guard: str
    """The guard program that comes with the package."""
    package: str
    """The folder that the package is in."""
    python: str
    in_python_worker: bool
    """Whether this process is a Python worker of Spark."""

    @staticmethod
    def find(*, in_python_worker: bool) -> Home:
        """That of this process."""
        guard = os.path.join(_PACKAGE, "bin", "phalanx-guard")
        return Home(guard, os.path.dirname(_PACKAGE), sys.executable, in_python_worker)
