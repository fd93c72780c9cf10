"""A rank's rows of a DataFrame as torch's `IterableDataset` of samples, each a list with a value for each column.

FEED-26 (as-pysparks): a sample is what pyspark's `_SparkPartitionTorchDataset` makes of the same row: an int or a
float, an array of an array's own type, a vector as a dense array of float64. Columns with nulls are floats, nulls NaN:
here in all rows, in pyspark in those that came to Python together with a null.
FEED-27 (bounded): at most `_ROWS` rows are taken out of a block at a time, and about `_BYTES`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

if TYPE_CHECKING:
    from ..blocks.source import BlockSource

_ROWS = 1 << 12
_BYTES = 16 << 20


class PartitionDataset(IterableDataset[Any]):
    """`num_samples` samples of the rows of `blocks`, from the first on, and again from there after the last."""

    def __init__(self, blocks: BlockSource, num_samples: int) -> None:
        self._blocks = blocks
        self._num_samples = max(0, num_samples)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise RuntimeError(
                "the rows of a partition are read by one process: give num_workers=0 or 1, not more"
            )
        passes = itertools.repeat(None) if sum(self._blocks.rows) else ()
        samples = itertools.chain.from_iterable(part for _ in passes for part in self._parts())
        return itertools.islice(samples, self._num_samples)

    def _parts(self) -> Iterator[Iterable[list[Any]]]:
        """The rows once, some at a time."""
        for block, rows in enumerate(self._blocks.rows):
            batch = self._blocks.batch(block)
            a_row = max(1, batch.nbytes // rows)
            at_once = max(1, min(_ROWS, _BYTES // a_row))
            for begin in range(0, rows, at_once):
                some = batch.slice(begin, at_once)
                nulls = self._blocks.facts.nulls
                columns = [
                    _values(column, has_nulls=bool(nulls.get(name) or nulls.get(f"{name}[]")))
                    for name, column in zip(some.schema.names, some.columns, strict=True)
                ]
                yield map(list, zip(*columns, strict=True))


def _values(column: Any, *, has_nulls: bool) -> Iterable[Any]:
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        return _vectors(column)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _arrays(column, _numbers(column.flatten(), has_nulls=has_nulls))
    values: list[Any] = _numbers(column, has_nulls=has_nulls).tolist()
    return values


def _numbers(array: Any, *, has_nulls: bool) -> np.ndarray[Any, Any]:
    """In memory of their own, which can be written; where other rows have nulls as floats, as theirs are."""
    numbers: np.ndarray[Any, Any] = np.array(array.to_numpy(zero_copy_only=False))
    return numbers.astype(np.float64) if has_nulls and numbers.dtype.kind == "i" else numbers


def _arrays(column: Any, numbers: np.ndarray[Any, Any]) -> Iterator[Any]:
    """Each row's piece of the numbers of all."""
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column)
    end = 0
    for length in lengths.to_pylist():
        if length is None:
            yield None
        else:
            end += length
            yield numbers[end - length : end]


def _vectors(column: Any) -> Iterator[Any]:
    """Vectors of `pyspark.ml`, each dense: sparse ones are made dense when their turn comes, for they may be long."""
    kinds, sizes, at, numbers = (column.field(name) for name in ("type", "size", "indices", "values"))
    rows = zip(
        column.is_valid().to_pylist(),
        kinds.to_pylist(),
        sizes.to_pylist(),
        _arrays(at, _numbers(at.flatten(), has_nulls=False)),
        _arrays(numbers, _numbers(numbers.flatten(), has_nulls=False)),
        strict=True,
    )
    for is_valid, kind, size, indices, values in rows:
        if not is_valid:
            yield None
        elif kind == 1:
            yield values
        else:
            dense = np.zeros(size, np.float64)
            dense[indices] = values
            yield dense
