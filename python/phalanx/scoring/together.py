"""Outputs on their way to Spark.

SCORE-25 (together): small outputs of several calls of the model go to Spark in one batch, since each batch costs Spark
as much as a thousand small rows do. None waits while Spark makes more rows, and none for longer than 50 ms and the
model's next call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

PATIENCE = 0.05
"""How long outputs may wait for those of the next call, in seconds."""

ENOUGH = 1 << 20
"""Bytes of outputs that go at once."""


class Made(NamedTuple):
    """What the model made of rows."""

    rows: int
    beside: Sequence[Any]
    """The rows' other columns."""
    outputs: list[Any]
    """Arrow's arrays, one for each output."""


class Together:
    """Outputs that wait for each other."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._held: list[Made] = []
        self._size = 0
        self._gave = now()

    def add(self, made: Made) -> Iterator[Made]:
        """What goes now that these have come."""
        self._held.append(made)
        self._size += sum(array.nbytes for array in made.outputs)
        if self._size >= ENOUGH or self._now() - self._gave >= PATIENCE:
            yield from self.all()

    def all(self) -> Iterator[Made]:
        """All that wait, as one."""
        if self._held:
            yield _joined(self._held)
        self._held, self._size, self._gave = [], 0, self._now()


def _joined(parts: list[Made]) -> Made:
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]

    def concatenated(columns: list[Sequence[Any]]) -> list[Any]:
        return [pa.concat_arrays(arrays) for arrays in zip(*columns, strict=True)]

    return Made(
        sum(part.rows for part in parts),
        concatenated([part.beside for part in parts]),
        concatenated([part.outputs for part in parts]),
    )
