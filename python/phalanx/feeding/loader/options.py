"""`LoaderOptions`: what batches a loader is to give, whatever its rows come from."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from ...rank import contract


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The arguments of `DataSet.loader`, which documents them.

    Raises `TypeError` and `ValueError` for a `batch_size` that can't be.
    """

    batch_size: int
    shuffle: bool | str = False
    seed: int = 0
    uneven: str = "drop"
    nulls: Any = "error"
    pad: Any = None
    transform: Callable[[Any], Any] | None = None
    rank: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        size = self.batch_size
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"batch_size has to be an int, not {size!r}")
        if size < 1:
            raise ValueError(f"batch_size has to be positive, not {size}")
        object.__setattr__(self, "batch_size", size.__index__())

    @property
    def part(self) -> tuple[int, int]:
        """Whose rows: rank and number of ranks, which are this process's where they aren't given."""
        rank, world_size = self.rank, self.world_size
        if rank is None:
            rank = int(os.environ.get(contract.ENV_RANK, "0"))
        if world_size is None:
            world_size = int(os.environ.get(contract.ENV_WORLD_SIZE, "1"))
        return rank, world_size
