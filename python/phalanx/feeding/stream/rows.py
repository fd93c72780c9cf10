"""Rows of a streamed data set between their coming and the batches of a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..blocks.index import Facts
from ..blocks.write import facts_of
from ..loader.columns import LIST, Column, by_column, check_names, columns_of
from ..loader.loader import MASK

if TYPE_CHECKING:
    from .source import StreamSource


class WaitingRows:
    """What has come for a rank and isn't in a batch yet, cut anew into whole batches of `size` rows."""

    def __init__(self, source: StreamSource, rank: int, size: int) -> None:
        self._source = source
        self._rank = rank
        self._size = size
        self._coming = source.batches(rank)
        self._waiting: list[Any] = []
        self._first: Any = None
        self._filled = 0
        self.has_ended = False
        """Whether no more come."""
        self.count = 0
        """How many rows wait."""
        self.bytes = 0
        """About how many bytes they have."""

    def wait_for(self, rows: int) -> None:
        """Waits until so many rows are there, or all that come."""
        while self.count < rows and not self.has_ended:
            batch = next(self._coming, None)
            if batch is None:
                self.has_ended = True
            else:
                self._waiting.append(batch)
                self.count += batch.num_rows
                self.bytes += batch.nbytes

    def take(self, steps: int) -> tuple[Any, int]:
        """The rows of so many steps as one record batch, and how many of them are rows that waited; where these are too
        few, rows of this rank's beginning follow.

        Raises `RuntimeError` where there are none.
        """
        import pyarrow as pa

        wanted = steps * self._size
        own = min(wanted, self.count)
        taken = self._cut(own)
        if self._first is None and own:
            self._first = pa.Table.from_batches(taken).slice(0, self._size).combine_chunks().to_batches()[0]
        if own < wanted:
            taken.append(self._filling(wanted - own))
        return pa.Table.from_batches(taken).combine_chunks().to_batches()[0], own

    def finish(self) -> str:
        """Takes no more. Says what is left out: "" for nothing."""
        self._coming.close()
        if not self.has_ended:
            return f"{self.count} rows and those that it has not received"
        return f"{self.count} rows" if self.count else ""

    def _cut(self, rows: int) -> list[Any]:
        taken = []
        self.count -= rows
        while rows:
            batch = self._waiting[0]
            if batch.num_rows <= rows:
                taken.append(self._waiting.pop(0))
            else:
                taken.append(batch.slice(0, rows))
                self._waiting[0] = batch.slice(rows)
            rows -= taken[-1].num_rows
        self.bytes = sum(batch.nbytes for batch in self._waiting)
        return taken

    def _filling(self, rows: int) -> Any:
        import numpy as np

        if self._first is None:
            raise RuntimeError(
                f"rank {self._rank} received no row of the data set {self._source.name!r}, so it can't take the "
                'steps that the other ranks take; repartition the DataFrame, or use uneven="drop"'
            )
        at = np.arange(self._filled, self._filled + rows) % self._first.num_rows
        self._filled += rows
        return self._first.take(at)


class StreamColumns:
    """How the columns of rows that come become tensors, where nobody knows what rows will come."""

    def __init__(self, data_set: str, *, nulls: Any, pad: Any, uneven: str) -> None:
        self._data_set = data_set
        self._nulls = nulls
        self._pad = pad
        self._uneven = uneven
        self._lengths: dict[str, list[int]] = {}

    def of(self, batch: Any) -> list[Column]:
        """The columns of these rows.

        Raises `TypeError` and `ValueError` as `columns_of`, and `ValueError` for arrays without a `pad` that have
        another length than those before.
        """
        if self._uneven == "pad" and MASK in batch.schema.names:
            raise ValueError(
                f'the data set {self._data_set!r} has a column {MASK!r}, which uneven="pad" adds to batches; rename it'
            )
        check_names(batch.schema, data_set=self._data_set, nulls=self._nulls, pad=self._pad)
        found = facts_of(batch)
        lengths = {name: self._of_arrays(name, levels) for name, levels in found["lengths"].items()}
        facts = Facts(found["nulls"], lengths)
        return columns_of(batch.schema, facts, data_set=self._data_set, nulls=self._nulls, pad=self._pad)

    def _of_arrays(self, name: str, levels: list[list[int]]) -> list[list[int]]:
        if by_column(self._pad, name, None) is not None and len(levels) == 1:
            return [[0, 1]]  # as if they had different lengths, so that all batches are alike
        before = self._lengths.setdefault(name, [-1] * len(levels))
        for level, (shortest, longest) in enumerate(levels):
            if shortest < 0:
                continue
            known = before[level] if before[level] >= 0 else shortest
            if shortest != known or longest != known:
                other = shortest if shortest != known else longest
                raise ValueError(
                    f"the column {name!r} of the data set {self._data_set!r} has arrays of {known} and of {other} "
                    "elements; the rows of a streamed data set are not known in advance, so say how to make batches "
                    f'of such arrays: pad=0, pad="jagged", pad="{LIST}" (a list of tensors), or a transform'
                )
            before[level] = known
        return [[length, length] for length in before]
