"""What a task of Spark does: it gives its rows to the model's process, and takes the outputs.

SCORE-15 (in-order): outputs are beside the rows that they belong to, whatever fails.

Rows go as they are, and the process makes tensors of them (`whole_rows.py`), unless a function of the user's makes them
here (`preprocessed.py`).
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

from .batch_memory import NewColumn
from .connection import ModelProcess, Place
from .parts import Piece
from .preprocessed import Preprocessed
from .tensors import Tensors
from .whole_rows import ROWS, told_of_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .shipping import ShippedModel

ON_ERROR = ("raise", "null")

MARK = "__phalanx"
"""The last field of a struct of outputs: nulls. Its metadata says how a JVM can do the same (`plan.py`)."""

# As many as the model's process takes of a task (SCORE-2).
_UNDER_WAY = 2


class Scoring:
    """How tasks score: what `phalanx.predict` was told."""

    def __init__(
        self,
        *,
        key: str,
        model: ShippedModel,
        told: dict[str, Any],
        inputs: str | list[str],
        outputs: StructType,
        batch_size: int,
        preprocess: Callable[[Any], Any] | None,
        nulls: Any,
        pad: Any,
        on_error: str,
        keys: list[str],
    ) -> None:
        """Raises `TypeError` where `nulls` or `pad` is no number or text."""
        self._key, self._model, self._told = key, model, told
        self._inputs, self._outputs, self._keys = inputs, outputs, keys
        self._batch_size, self._preprocess = batch_size, preprocess
        self._nulls, self._pad, self._on_error = nulls, pad, on_error
        self._told_of_rows = told_of_rows(
            schema=self._schema(),
            inputs=inputs,
            keys=keys,
            nulls=nulls,
            pad=pad,
            on_error=on_error,
            batch_size=batch_size,
        )

    def arrays(self, arrays: Iterator[Any]) -> Iterator[Any]:
        """Arrow's arrays of the inputs and keys to structs of the outputs."""
        import pyarrow as pa

        names, fields = self._columns(), [*self._schema(), pa.field(MARK, pa.bool_())]
        # Spark gives a function of one column arrays, and one of several columns tuples.
        columns = (list(given) if isinstance(given, tuple) else [given] for given in arrays)
        for piece, made in self._scored((pa.RecordBatch.from_arrays(given, names), ()) for given in columns):
            mark = pa.nulls(piece.rows.num_rows, pa.bool_())
            yield pa.StructArray.from_arrays([*made, mark], fields=fields)

    def rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Record batches whose last columns are the inputs and keys, to the others and the outputs."""
        import pyarrow as pa

        names = self._columns()
        has: list[str] = []

        def parted() -> Iterator[tuple[Any, Sequence[Any]]]:
            for batch in batches:
                width = batch.num_columns - len(names)
                has[:] = batch.schema.names[:width]
                yield pa.RecordBatch.from_arrays(batch.columns[width:], names), batch.columns[:width]

        for piece, made in self._scored(parted()):
            mark = pa.nulls(piece.rows.num_rows, pa.bool_())
            yield pa.RecordBatch.from_arrays([*piece.beside, *made, mark], [*has, *self._outputs.names, MARK])

    def told_to_jvm(self, env: dict[str, str]) -> str | None:
        """What the JVM has to know to do the same, as `plan.py` says; None where only Python can.

        `env` are variables of the model's process.
        """
        told = {
            "key": self._key,
            "told": json.dumps(self._told),
            "columns": self._columns(),
            "rows": self._told_of_rows,
            "batch_size": self._batch_size,
            "env": env,
        }
        return json.dumps(told) if self._preprocess is None else None

    def _columns(self) -> list[str]:
        inputs = [self._inputs] if isinstance(self._inputs, str) else self._inputs
        return list(dict.fromkeys([*inputs, *self._keys]))

    def _schema(self) -> Any:
        """Arrow's schema of the outputs."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_type

        # From 4.3 on pyspark asks for the time zone of timestamps.
        zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
        kinds = [(field.name, to_arrow_type(field.dataType, **zone)) for field in self._outputs]
        return pa.schema([pa.field(name, kind) for name, kind in kinds])

    def _scored(self, batches: Iterator[tuple[Any, Sequence[Any]]]) -> Iterator[tuple[Piece, list[Any]]]:
        """Rows of the inputs and keys, and columns that go along, to pieces of them with their outputs; in order."""
        way: _AsTheyAre | Preprocessed = _AsTheyAre(self._told_of_rows, self._batch_size)
        if self._preprocess is not None:
            tensors = Tensors(self._inputs, self._keys, nulls=self._nulls, pad=self._pad)
            way = Preprocessed(
                tensors,
                self._preprocess,
                self._schema(),
                batch_size=self._batch_size,
                on_error=self._on_error,
            )
        place = Place.of_task(self._told["processes"])
        with contextlib.closing(ModelProcess(self._key, self._model, self._told, place)) as process:
            yield from scored(process, way, batches)


def scored(
    process: ModelProcess, way: _AsTheyAre | Preprocessed, batches: Iterator[tuple[Any, Sequence[Any]]]
) -> Iterator[tuple[Piece, list[Any]]]:
    """Pieces of record batches, and of columns that go along, with what a model's process makes of them; in order."""
    waiting: deque[Piece] = deque()
    for piece in _pieces(batches, lambda: way.rows_at_once(process)):
        if len(waiting) == _UNDER_WAY:
            yield from way.take(process, waiting)
        way.give(process, piece)
        waiting.append(piece)
    while waiting:
        yield from way.take(process, waiting)


class _AsTheyAre:
    """How a task gives rows, and takes the outputs, of which the process makes all else."""

    def __init__(self, told: str, batch_size: int) -> None:
        self._told, self._batch_size = told, batch_size

    def rows_at_once(self, process: ModelProcess) -> int:
        return process.rows_at_once(self._batch_size)

    def give(self, process: ModelProcess, piece: Piece) -> None:
        process.give(piece.rows.num_rows, [NewColumn(ROWS, piece.rows)], f"{piece.first} {self._told}")

    def take(self, process: ModelProcess, waiting: deque[Piece]) -> Iterator[tuple[Piece, list[Any]]]:
        yield waiting.popleft(), process.take_rows().columns


def _pieces(batches: Iterator[tuple[Any, Sequence[Any]]], rows_at_once: Callable[[], int]) -> Iterator[Piece]:
    first = 0
    for rows, beside in batches:
        whole, start = Piece(first, rows, beside), 0
        while start < rows.num_rows:
            piece = whole.cut(start, rows_at_once())
            start += piece.rows.num_rows
            yield piece
        first += rows.num_rows
