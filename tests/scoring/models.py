"""Models for tests of scoring; they go by value, as a notebook's do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import cloudpickle
import torch


class Twice(torch.nn.Module):
    """Twice a number, and half of it where it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor if not self.training else x / 2


class WithProcess(torch.nn.Module):
    """Twice a number, and the process that it runs in."""

    def forward(self, x: torch.Tensor) -> Any:
        return x * 2, torch.full((len(x),), os.getpid())


class Counting:
    """Adds to a file how many rows it was called with, and returns twice a number and its own process."""

    def __init__(self, log: str) -> None:
        self._log = log

    def __call__(self) -> Any:
        def model(x: torch.Tensor) -> Any:
            with open(self._log, "a") as log:
                log.write(f"{len(x)}\n")
            return x * 2, torch.full((len(x),), os.getpid())

        return model

    @property
    def rows(self) -> int:
        """How many rows it was called with so far."""
        log = Path(self._log)
        return sum(map(int, log.read_text().split())) if log.exists() else 0

    def forget(self) -> None:
        Path(self._log).unlink(missing_ok=True)


class Slow:
    """Takes a moment for each batch, and writes its process's id to a file when it begins with the first."""

    def __init__(self, started: str, seconds: float) -> None:
        self._started, self._seconds = started, seconds

    def __call__(self) -> Any:
        def model(x: torch.Tensor) -> torch.Tensor:
            with open(self._started, "a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(self._seconds)
            return x + 1

        return model


class Named:
    """Leaves a file whose name is its process's id, and never ends."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self) -> Any:
        def model(x: torch.Tensor) -> Any:
            Path(self._folder, str(os.getpid())).touch()
            time.sleep(600)
            return x, x.long()

        return model


def only_even(x: torch.Tensor) -> torch.Tensor:
    """Half of even numbers; it can't be asked for others."""
    if bool((x % 2 != 0).any()):
        raise ValueError(f"{int(x[x % 2 != 0][0])} is odd")
    return x // 2


cloudpickle.register_pickle_by_value(__import__(__name__))
