"""Rows of which a task makes what the model is given: by a function of the user's.

Their batches go to the model's process as columns, one at a time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .arrow_outputs import as_arrow
from .parts import ModelFailed, Piece, by_parts
from .tensors import Tensors

if TYPE_CHECKING:
    from .connection import ModelProcess


class Preprocessed:
    """How such a task gives and takes; `outputs` is Arrow's schema of them."""

    def __init__(
        self,
        tensors: Tensors,
        preprocess: Callable[[Any], Any],
        outputs: Any,
        *,
        batch_size: int,
        on_error: str,
    ) -> None:
        self._tensors, self._preprocess, self._outputs = tensors, preprocess, outputs
        self._batch_size, self._on_error = batch_size, on_error

    def rows_at_once(self, process: ModelProcess) -> int:
        return self._batch_size

    def give(self, process: ModelProcess, piece: Piece) -> None:
        given = self._tensors.of(piece.rows, piece.first)
        made = self._tensors.preprocessed(given, self._preprocess, piece.rows, piece.first)
        process.give(piece.rows.num_rows, made, json.dumps(self._outputs.names))

    def take(self, process: ModelProcess, waiting: deque[Piece]) -> Iterator[tuple[Piece, list[Any]]]:
        """What became of the oldest piece, and, where the model fails with that, of those behind it."""
        piece = waiting.popleft()
        try:
            yield piece, self._arrow(process.take(), piece)
        except ModelFailed as problem:
            if self._on_error == "raise":
                raise problem.about(self._tensors.rows_named(piece.rows, piece.first)) from None

            def ask(part: Piece) -> list[Any]:
                self.give(process, part)
                return self._arrow(process.take(), part)

            # The others' outputs come first; what failed is tried again by itself then.
            behind: list[tuple[Piece, list[Any] | None]] = []
            for other in waiting:
                try:
                    behind.append((other, self._arrow(process.take(), other)))
                except ModelFailed:
                    behind.append((other, None))
            waiting.clear()
            for other, outputs in [(piece, None), *behind]:
                yield other, by_parts(other, ask, self._outputs.types) if outputs is None else outputs

    def _arrow(self, columns: list[Any], piece: Piece) -> list[Any]:
        return [
            as_arrow(values, field.type, field.name, piece.rows.num_rows)
            for values, field in zip(columns, self._outputs, strict=True)
        ]
