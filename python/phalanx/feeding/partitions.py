"""`_train_on_dataframe`: the rows of a DataFrame for each rank, by its partitions, from the blocks that data sets have.

DF-1 (by-partition): where a DataFrame has as many partitions as the run has ranks, rank r has those of partition r, in
their order; where it has as many as the run has tasks, each rank of a task has those of the task's partition. Otherwise
all rows, in the order of the partitions, are cut into equal shares, one for each rank.
DF-2 (some-for-each): a run one of whose ranks would have no row is refused before its ranks start.
DF-3 (numbers-only): so is a column of another type than pyspark takes, before anything is computed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..rank import contract

NAME = "_train_on_dataframe"
"""What the data set is called in messages and in the payload."""

_NUMBERS = ("float", "double", "int", "bigint", "smallint")
_TYPES = {"vector", *_NUMBERS, *(f"array<{number}>" for number in _NUMBERS)}


class Partitions(NamedTuple):
    """Stands for a DataFrame of which each rank takes a partition."""

    frame: Any


def numbers_of(frame: Any) -> Any:
    """The DataFrame, with columns that can be told from one another: pyspark tells them by their place.

    Raises `ValueError` for a column of another type than pyspark takes.
    """
    for field in frame.schema.fields:
        kind = field.dataType.simpleString()
        if kind not in _TYPES:
            raise ValueError(
                f"_train_on_dataframe does not support loading data from field of type {kind}: the column "
                f"{field.name!r}; cast it or leave it out (df.select), or use run(data=...)"
            )
    names = [name.lower() for name in frame.columns]
    if len(set(names)) < len(names):
        return frame.toDF(*map(str, range(len(names))))
    return frame


def shares(rows: Sequence[int], ranks: int, tasks: int) -> list[tuple[int, int]]:
    """The part of each rank, of partitions with so many rows: its first row, counted over all, and how many it has.

    Raises `ValueError` where a rank would have none.
    """
    count = len(rows)
    starts = [0, *itertools.accumulate(rows)]
    if count in (ranks, tasks):
        empty = [partition for partition, size in enumerate(rows) if not size]
        if empty:
            raise ValueError(
                f"Empty Spark partition is not allowed in TorchDistributor.train_on_dataframe where the DataFrame has "
                f"as many partitions as the run has {'ranks' if count == ranks else 'tasks'}: {len(empty)} of the "
                f"{count} have no rows, the first of them is partition {empty[0]}; use repartition({count})"
            )
        each = ranks // count
        return [(starts[rank // each], rows[rank // each]) for rank in range(ranks)]
    total = starts[-1]
    if total < ranks:
        raise ValueError(f"the DataFrame has {total} rows, and each of the {ranks} ranks needs one")
    cuts = [total * rank // ranks for rank in range(ranks + 1)]
    return [(first, last - first) for first, last in itertools.pairwise(cuts)]


def partition_data_loader(
    num_samples: int, batch_size: int, num_workers: int = 1, prefetch_factor: int = 2
) -> Any:
    """A torch DataLoader over this rank's rows, inside a function run by `_train_on_dataframe`.

    Gives `num_samples` samples an epoch: the first rows, or the rows again from the first where there are fewer.
    `num_workers` is 0 (load in the rank itself) or 1.

    Raises `RuntimeError` outside such a function.
    """
    if not has_partitions():
        raise RuntimeError(
            "there is no partition here: this works in functions run by _train_on_dataframe only"
        )
    from torch.utils.data import DataLoader

    from .partition_dataset import PartitionDataset
    from .source import opened

    blocks = opened(NAME)
    rank = int(os.environ[contract.ENV_RANK])
    first, rows = blocks.shares[rank]
    dataset = PartitionDataset(blocks, first, rows, num_samples)
    if num_workers > 0:
        return DataLoader(dataset, batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor)
    return DataLoader(dataset, batch_size)  # torch refuses a prefetch factor without workers


def has_partitions() -> bool:
    """Whether this is a rank of `_train_on_dataframe`."""
    from .source import names

    return NAME in names()
