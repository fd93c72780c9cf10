"""Rows that come to a model's process as they are, from tasks that have no Python, and go as columns.

What such a task asks for is the number of the batch's first row in its partition, a blank, and a JSON object:

inputs, keys, nulls, pad, on_error   as `phalanx.predict` has them
outputs                              the outputs' schema, as Arrow has it, in base64
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from typing import Any

from .arrow_outputs import as_arrow
from .parts import ModelFailed, Piece, by_parts
from .tensors import Tensors


class RowsRefused(ValueError):
    """What a task is told: a whole sentence, and perhaps the model's traceback."""


def told_of_rows(*, schema: Any, **asked: Any) -> str | None:
    """What a task is to say beside each batch; None where JSON can't say it."""
    try:
        return json.dumps({**asked, "outputs": base64.b64encode(schema.serialize()).decode()})
    except (TypeError, ValueError):
        return None


def is_of_rows(asked: str) -> bool:
    """Whether a task asks this way."""
    return asked[:1].isdigit()


def scored(asked: str, rows: Any, call: Callable[[list[Any], int, list[str]], list[Any]]) -> Any:
    """A record batch of the outputs.

    `call` gives the model columns, of so many rows, and returns the outputs of these names. Raises `ModelFailed`, and
    `RowsRefused` for rows that can't be given to the model and for outputs that aren't what they should be.
    """
    first, _, told = asked.partition(" ")
    return _how(told).scored(Piece(int(first), rows), call)


@functools.lru_cache(maxsize=16)
def _how(told: str) -> _Rows:
    return _Rows(json.loads(told))


class _Rows:
    def __init__(self, told: dict[str, Any]) -> None:
        import pyarrow as pa

        self._schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["outputs"])))
        self._tensors = Tensors(told["inputs"], told["keys"], nulls=told["nulls"], pad=told["pad"])
        self._gives_nulls = told["on_error"] == "null"

    def scored(self, piece: Piece, call: Callable[[list[Any], int, list[str]], list[Any]]) -> Any:
        import pyarrow as pa

        def ask(part: Piece) -> list[Any]:
            try:
                given = self._tensors.of(part.rows, part.first)
                made = call(given, part.rows.num_rows, self._schema.names)
                return [
                    as_arrow(values, field.type, field.name, part.rows.num_rows)
                    for values, field in zip(made, self._schema, strict=True)
                ]
            except ModelFailed:
                raise
            except (TypeError, ValueError) as problem:
                raise RowsRefused(str(problem)) from problem

        try:
            arrays = ask(piece)
        except ModelFailed as problem:
            if not self._gives_nulls:
                raise problem.about(self._tensors.rows_named(piece.rows, piece.first)) from None
            arrays = by_parts(piece, ask, self._schema.types)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
