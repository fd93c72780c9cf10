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
from .trouble import Trouble

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
        self._not_given: set[int] = set()
        """The first rows of pieces with which the user's function has failed."""

    def rows_at_once(self, process: ModelProcess) -> int:
        return self._batch_size

    def give(self, process: ModelProcess, piece: Piece) -> None:
        try:
            self._give(process, piece)
        except ModelFailed:
            if self._on_error == "raise":
                raise
            self._not_given.add(piece.first)

    def take(self, process: ModelProcess, waiting: deque[Piece]) -> Iterator[tuple[Piece, list[Any]]]:
        """What became of the oldest piece, and, where the model fails with that, of those behind it."""
        # The others' outputs come first; what failed is tried again by itself then.
        outcomes = [(piece := waiting.popleft(), self._taken(process, piece))]
        while waiting and outcomes[0][1] is None:
            outcomes.append((piece := waiting.popleft(), self._taken(process, piece)))

        def ask(part: Piece) -> list[Any]:
            self._give(process, part)
            return self._arrow(process.take(), part)

        for piece, outputs in outcomes:
            yield piece, by_parts(piece, ask, self._outputs.types) if outputs is None else outputs

    def _give(self, process: ModelProcess, piece: Piece) -> None:
        """Raises `ModelFailed` where the user's function fails."""
        given = self._tensors.of(piece.rows, piece.first)
        try:
            made = self._preprocess(self._tensors.of_torch(given))
        except Exception as problem:
            error, traceback = Trouble.of(problem)
            text = f"preprocess failed: {error}\n\n{traceback}"
            raise ModelFailed(text).about(self._tensors.rows_named(piece.rows, piece.first)) from None
        columns = self._tensors.preprocessed(made, piece.rows, piece.first)
        process.give(piece.rows.num_rows, columns, json.dumps(self._outputs.names))

    def _taken(self, process: ModelProcess, piece: Piece) -> list[Any] | None:
        """The outputs; None where there are none, and nulls are asked for."""
        if piece.first in self._not_given:
            self._not_given.remove(piece.first)
            return None
        try:
            return self._arrow(process.take(), piece)
        except ModelFailed as problem:
            if self._on_error == "raise":
                raise problem.about(self._tensors.rows_named(piece.rows, piece.first)) from None
            return None

    def _arrow(self, columns: list[Any], piece: Piece) -> list[Any]:
        return [
            as_arrow(values, field.type, field.name, piece.rows.num_rows)
            for values, field in zip(columns, self._outputs, strict=True)
        ]
