"""What a task of Spark does: it gives its rows to the model's process, and takes the outputs.

SCORE-13 (as-trained): columns become tensors as in `phalanx.data`.
SCORE-14 (row-named): what can't be a tensor is an error that names the column, and the row where it is one row's.
SCORE-15 (in-order): outputs are beside the rows that they belong to, whatever fails.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .arrow_outputs import as_arrow
from .connection import ModelProcess
from .parts import ModelFailed, Piece, by_parts
from .tensors import Tensors
from .together import Made, Together
from .whole_rows import told_of_rows

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
        self._key, self._model, self._told = key, model, told
        self._inputs, self._outputs, self._keys = inputs, list(outputs.names), keys
        self._schema = outputs
        self._batch_size, self._preprocess = batch_size, preprocess
        self._nulls, self._pad, self._on_error = nulls, pad, on_error

    def arrays(self, arrays: Iterator[Any]) -> Iterator[Any]:
        """Arrow's arrays of the inputs and keys to structs of the outputs."""
        import pyarrow as pa

        names, fields = self._columns(), [*self._fields(), pa.field(MARK, pa.bool_())]
        # Spark gives a function of one column arrays, and one of several columns tuples.
        columns = (given if isinstance(given, tuple) else (given,) for given in arrays)
        batches = ((pa.RecordBatch.from_arrays(list(given), names), []) for given in columns)
        for made in self._scored(batches):
            mark = pa.nulls(made.rows, pa.bool_())
            yield pa.StructArray.from_arrays([*made.outputs, mark], fields=fields)

    def rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Record batches whose last columns are the inputs and keys, to the others and the outputs."""
        import pyarrow as pa

        names = self._columns()
        has: list[str] = []

        def parted() -> Iterator[tuple[Any, list[Any]]]:
            for batch in batches:
                width = batch.num_columns - len(names)
                has[:] = batch.schema.names[:width]
                yield pa.RecordBatch.from_arrays(batch.columns[width:], names), batch.columns[:width]

        for made in self._scored(parted()):
            mark = pa.nulls(made.rows, pa.bool_())
            yield pa.RecordBatch.from_arrays(
                [*made.beside, *made.outputs, mark], [*has, *self._outputs, MARK]
            )

    def told_to_jvm(self, env: dict[str, str]) -> str | None:
        """What the JVM has to know to do the same, as `plan.py` says; None where only Python can.

        `env` are variables of the model's process.
        """
        import pyarrow as pa

        if self._preprocess is not None:
            return None
        rows = told_of_rows(
            schema=pa.schema(self._fields()),
            inputs=self._inputs,
            keys=self._keys,
            nulls=self._nulls,
            pad=self._pad,
            on_error=self._on_error,
        )
        told = {
            "key": self._key,
            "told": json.dumps(self._told),
            "columns": self._columns(),
            "rows": rows,
            "batch_size": self._batch_size,
            "env": env,
        }
        return None if rows is None else json.dumps(told)

    def _columns(self) -> list[str]:
        inputs = [self._inputs] if isinstance(self._inputs, str) else self._inputs
        return list(dict.fromkeys([*inputs, *self._keys]))

    @cached_property
    def _types(self) -> list[Any]:
        """The Arrow types of the outputs."""
        from pyspark.sql.pandas.types import to_arrow_type

        return [to_arrow_type(field.dataType) for field in self._schema.fields]

    def _fields(self) -> list[Any]:
        import pyarrow as pa

        return [pa.field(name, kind) for name, kind in zip(self._outputs, self._types, strict=True)]

    def _pieces(self, rows: Any, beside: list[Any], first: int) -> Iterator[Piece]:
        for start in range(0, rows.num_rows, self._batch_size):
            along = [column.slice(start, self._batch_size) for column in beside]
            yield Piece(first + start, rows.slice(start, self._batch_size), along)

    def _scored(self, batches: Iterator[tuple[Any, list[Any]]]) -> Iterator[Made]:
        """Rows of the inputs and keys, and what goes along, to that and the outputs; in order."""
        tensors = Tensors(self._inputs, self._keys, nulls=self._nulls, pad=self._pad)
        waiting: deque[Piece] = deque()
        together, first = Together(), 0
        with contextlib.closing(ModelProcess(self._key, self._model, self._told)) as process:
            for rows, beside in batches:
                for piece in self._pieces(rows, beside, first):
                    if len(waiting) == _UNDER_WAY:
                        for made in self._taken(process, tensors, waiting):
                            yield from together.add(made)
                    self._give(process, tensors, piece)
                    waiting.append(piece)
                first += rows.num_rows
                yield from together.all()
            while waiting:
                for made in self._taken(process, tensors, waiting):
                    yield from together.add(made)
            yield from together.all()

    def _give(self, process: ModelProcess, tensors: Tensors, piece: Piece) -> None:
        given = tensors.of(piece.rows, piece.first)
        if self._preprocess is not None:
            given = tensors.preprocessed(given, self._preprocess, piece.rows, piece.first)
        process.give(piece.rows.num_rows, given, json.dumps(self._outputs))

    def _taken(self, process: ModelProcess, tensors: Tensors, waiting: deque[Piece]) -> Iterator[Made]:
        """What became of the oldest piece, and, where the model fails with that, of those behind it."""
        piece = waiting.popleft()
        try:
            yield _made(piece, self._arrow(process.take(), piece))
        except ModelFailed as problem:
            if self._on_error == "raise":
                raise problem.about(tensors.rows_named(piece.rows, piece.first)) from None

            def ask(part: Piece) -> list[Any]:
                self._give(process, tensors, part)
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
                yield _made(other, by_parts(other, ask, self._types) if outputs is None else outputs)

    def _arrow(self, columns: Sequence[Any], piece: Piece) -> list[Any]:
        return [
            as_arrow(values, kind, name, piece.rows.num_rows)
            for values, kind, name in zip(columns, self._types, self._outputs, strict=True)
        ]


def _made(piece: Piece, outputs: list[Any]) -> Made:
    return Made(piece.rows.num_rows, piece.beside, outputs)
