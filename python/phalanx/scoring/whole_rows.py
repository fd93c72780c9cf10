"""Rows that come to a model's process as they are, in one record batch, and go as another of the outputs.

SCORE-13 (as-trained): columns become tensors as in `phalanx.data`.
SCORE-14 (row-named): what can't be a tensor is an error that names the column, and the row where it is one row's.

What a task asks for is the number of the first row in its partition, a blank, and a JSON object:

inputs, keys, nulls, pad, on_error   as `phalanx.predict` has them
batch_size                           how many rows the model is given at once; there may be more (SCORE-25)
outputs                              the outputs' schema, as Arrow has it, in base64
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from .arrow_outputs import as_arrow
from .batch_memory import NewColumn
from .parts import ModelFailed, Piece, by_parts
from .tensors import Tensors

ROWS = "rows"
"""What the column is called that is all of them."""


class RowsRefused(ValueError):
    """What a task is told: a whole sentence, and perhaps the model's traceback."""


_Call: TypeAlias = "Callable[[list[NewColumn], int, list[str]], Callable[[], list[Any]]]"


def told_of_rows(*, schema: Any, **asked: Any) -> str:
    """What a task is to say beside each batch. Raises `TypeError` where what stands for nulls is no number or text."""
    told = {**asked, "outputs": base64.b64encode(schema.serialize()).decode()}
    return json.dumps(told, default=_plain)


def _plain(value: Any) -> Any:
    if getattr(value, "ndim", None) == 0:  # a number of numpy's or of torch's
        return value.item()
    raise TypeError(f"nulls= and pad= take numbers and texts, not {type(value).__name__}")


def is_of_rows(asked: str) -> bool:
    """Whether a task asks this way."""
    return asked[:1].isdigit()


def scored(asked: str, rows: Any, call: _Call, ahead: int) -> Callable[[], Any]:
    """A wait for the record batch of the outputs.

    `call` gives the model columns, of so many rows, and returns a wait for the outputs of these names, which raises
    `ModelFailed`. So does this, at once or where it is waited for. It raises `RowsRefused` for rows that can't be given
    to the model, and for outputs that aren't what they should be. `ahead` is how many of the model's batches are begun
    while one is computed; without any, the model may use the memory of its outputs again for the next batch.
    """
    first, _, told = asked.partition(" ")
    return _how(told).scored(Piece(int(first), rows), call, ahead)


@functools.lru_cache(maxsize=16)
def _how(told: str) -> _Rows:
    return _Rows(json.loads(told))


class _Rows:
    def __init__(self, told: dict[str, Any]) -> None:
        import pyarrow as pa

        self._schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["outputs"])))
        self._tensors = Tensors(told["inputs"], told["keys"], nulls=told["nulls"], pad=told["pad"])
        self._gives_nulls = told["on_error"] == "null"
        self._batch_size = told["batch_size"]
        self._is_padded = told["pad"] is not None

    def scored(self, piece: Piece, call: _Call, ahead: int) -> Callable[[], Any]:
        import pyarrow as pa

        together = self._together(piece)
        parts: list[list[Any]] = []
        begun: deque[Callable[[], list[Any]]] = deque()
        for start in range(0, piece.rows.num_rows, self._batch_size):
            part, end = piece.cut(start, self._batch_size), start + self._batch_size
            given = together and [NewColumn(name, values[start:end]) for name, values in together]
            begun.append(self._begun(part, given or self._tensors_of(part), call))
            if len(begun) > ahead:
                parts.append(begun.popleft()())

        def made() -> Any:
            parts.extend(wait() for wait in begun)
            arrays = parts[0] if len(parts) == 1 else list(map(pa.concat_arrays, zip(*parts, strict=True)))
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

        return made

    def _together(self, piece: Piece) -> list[NewColumn] | None:
        """All batches as one, to be cut; None where each has to become tensors by itself.

        One is padded to its own longest array, and what can't be a tensor is an error of its own batch.
        """
        if self._is_padded or piece.rows.num_rows <= self._batch_size:
            return None
        try:
            return [column.listed() for column in self._tensors.of(piece.rows, piece.first)]
        except (TypeError, ValueError):
            return None

    def _begun(self, piece: Piece, given: list[NewColumn], call: _Call) -> Callable[[], list[Any]]:
        """A wait for what becomes of what the model is given at once."""
        names = self._schema.names
        outputs = call(given, piece.rows.num_rows, names)

        def made() -> list[Any]:
            try:
                return self._arrays(piece, outputs)
            except ModelFailed as problem:
                if not self._gives_nulls:
                    raise problem.about(self._tensors.rows_named(piece.rows, piece.first)) from None

                def ask(part: Piece) -> list[Any]:
                    return self._arrays(part, call(self._tensors_of(part), part.rows.num_rows, names))

                return by_parts(piece, ask, self._schema.types)

        return made

    def _tensors_of(self, piece: Piece) -> list[NewColumn]:
        with _refusing():
            return self._tensors.of(piece.rows, piece.first)

    def _arrays(self, piece: Piece, outputs: Callable[[], list[Any]]) -> list[Any]:
        with _refusing():
            return [
                as_arrow(values, field.type, field.name, piece.rows.num_rows)
                for values, field in zip(outputs(), self._schema, strict=True)
            ]


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raises `RowsRefused` for what is wrong with the rows or with the outputs."""
    try:
        yield
    except (TypeError, ValueError) as problem:
        raise RowsRefused(str(problem)) from problem
