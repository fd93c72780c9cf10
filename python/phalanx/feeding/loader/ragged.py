"""Arrays of different lengths, and what a batch has of them: a slice, in memory of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .arrow_memory import Numbers

if TYPE_CHECKING:
    import torch


class Ragged:
    """Some arrays: `offsets` says where in `values`, the elements of all, each begins, and where the last one ends."""

    def __init__(self, values: Numbers, offsets: Numbers) -> None:
        self._values = values
        self._offsets = offsets - offsets[0]

    def __getitem__(self, rows: slice) -> Any:
        raise NotImplementedError


class Listed(Ragged):
    """Gives lists of tensors."""

    def __getitem__(self, rows: slice) -> list[torch.Tensor]:
        import torch

        ends = self._offsets[rows.start : rows.stop + 1].tolist()
        return [torch.from_numpy(self._values[ends[i] : ends[i + 1]].copy()) for i in range(len(ends) - 1)]


class Jagged(Ragged):
    """Gives nested tensors of torch's jagged layout."""

    def __getitem__(self, rows: slice) -> torch.Tensor:
        import torch

        ends = self._offsets[rows.start : rows.stop + 1].astype(np.int64)
        own = torch.from_numpy(self._values[ends[0] : ends[-1]].copy())
        return torch.nested.nested_tensor_from_jagged(own, torch.from_numpy(ends - ends[0]))


class Padded(Ragged):
    """Gives tensors that are padded to the longest array of the slice."""

    def __init__(self, values: Numbers, offsets: Numbers, padding: Any) -> None:
        super().__init__(values, offsets)
        self._padding = padding
        # In small batches each call counts: what is the same for all is made once.
        self._lengths = np.diff(offsets)
        self._positions = np.arange(self._lengths.max(initial=0))

    def __getitem__(self, rows: slice) -> torch.Tensor:
        import torch

        return torch.from_numpy(self.numbers(rows))

    def numbers(self, rows: slice) -> Numbers:
        """The same, as numpy's."""
        lengths = self._lengths[rows]
        longest = lengths.max()
        padded = np.empty((len(lengths), longest), self._values.dtype)
        padded.fill(self._padding)
        first, last = self._offsets[rows.start], self._offsets[rows.stop]
        padded[self._positions[:longest] < lengths[:, None]] = self._values[first:last]
        return padded
