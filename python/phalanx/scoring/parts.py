"""Rows with which a model failed: their outputs by parts, nulls for those with which it fails alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .arrow_outputs import empty


class ModelFailed(RuntimeError):
    """The model raised an exception; the text ends with its traceback."""

    def about(self, rows: str) -> ModelFailed:
        """The same, with the rows that it failed with."""
        return ModelFailed(f"with {rows} {self}")


class Piece(NamedTuple):
    """Rows that the model is given at once."""

    first: int
    """The number of the first in the partition."""
    rows: Any
    """A record batch: the inputs and the keys, by their names."""
    beside: Sequence[Any] = ()
    """Columns of the same rows that go along."""

    def cut(self, start: int, rows: int) -> Piece:
        """So many of the rows, or as many as there are."""
        along = [column.slice(start, rows) for column in self.beside]
        return Piece(self.first + start, self.rows.slice(start, rows), along)


def by_parts(piece: Piece, ask: Callable[[Piece], list[Any]], kinds: Sequence[Any]) -> list[Any]:
    """Arrays of the outputs of rows with which the model failed.

    `ask` has the model compute, and raises `ModelFailed`; `kinds` are the Arrow types of the outputs.
    """
    import pyarrow as pa

    count = piece.rows.num_rows
    if count == 1:
        return [empty(kind, 1) for kind in kinds]
    made = []
    for start, length in ((0, count // 2), (count // 2, count - count // 2)):
        part = piece.cut(start, length)
        try:
            made.append(ask(part))
        except ModelFailed:
            made.append(by_parts(part, ask, kinds))
    return [pa.concat_arrays(halves) for halves in zip(*made, strict=True)]
