"""Which process of tests something comes from: several run at the same time, and each looks at its own only."""

from __future__ import annotations

import os

import psutil

# What every process that comes from these tests has in its environment.
NAME = "PHALANX_TESTS"


def take() -> None:
    """From now on what this process starts is its own."""
    os.environ[NAME] = str(os.getpid())


def is_mine(process: psutil.Process) -> bool:
    """Whether it comes from this process of tests, however it hangs in the tree now."""
    return bool(process.environ().get(NAME) == os.environ[NAME])
