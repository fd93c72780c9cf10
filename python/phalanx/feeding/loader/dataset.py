"""A loader as torch's `IterableDataset`, for code that makes a `DataLoader` of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from .loader import Loader


class BatchDataset(IterableDataset[Any]):
    """Gives a loader's batches: `DataLoader(dataset, batch_size=None, num_workers=2)`.

    Worker processes share a rank's steps, and the batches come in the loader's order. They have copies of this object:
    the loader's state stays where it is. Without `set_epoch` all epochs are the same, unless workers are persistent.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            return iter(self.loader)
        return self.loader.share(worker.id, worker.num_workers)

    def set_epoch(self, epoch: int) -> None:
        """As `Loader.set_epoch`."""
        self.loader.set_epoch(epoch)
