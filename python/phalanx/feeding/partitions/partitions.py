"""`_train_on_dataframe`: a DataFrame's partitions, one for each task, as files of blocks that the task's ranks read.

FEED-28 (ranks-only): only the ranks are told where the rows are. The environment of Spark's reused Python worker stays
as it is.
FEED-29 (files-go): the files are gone when the task's `with` block ends.
FEED-30 (numbers-only): a column of another type than pyspark takes is refused before anything is computed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...rank import contract
from ..blocks.index import Block, Facts, Index

_NUMBERS = ("float", "double", "int", "bigint", "smallint")
_TYPES = {"vector", *_NUMBERS, *(f"array<{number}>" for number in _NUMBERS)}


def numbers_of(frame: Any) -> Any:
    """The DataFrame, with columns that can be told from one another: pyspark tells them by their place.

    Raises `ValueError` for one without columns, or with a column of another type than pyspark takes.
    """
    for field in frame.schema.fields:
        kind = field.dataType.simpleString()
        if kind not in _TYPES:
            raise ValueError(
                f"_train_on_dataframe does not support loading data from field of type {kind}: the column "
                f"{field.name!r}; cast it or leave it out (df.select), or use run(data=...)"
            )
    names = [name.lower() for name in frame.columns]
    if not names:
        raise ValueError("the DataFrame for _train_on_dataframe has no columns")
    if len(set(names)) < len(names):
        return frame.toDF(*map(str, range(len(names))))
    return frame


@contextmanager
def partition_file(batches: Iterable[Any], directory: str) -> Iterator[dict[str, str]]:
    """Writes a partition's Arrow batches under `directory` (one of Spark's local ones: data may be large).

    Gives the environment that tells ranks where they are.

    Raises `ValueError` for a partition without rows, `OSError` where it can't be written.
    """
    from ..blocks.write import BLOCK_BYTES, BLOCK_ROWS, write_partition

    folder = tempfile.mkdtemp(prefix="phalanx-", dir=directory)
    try:
        path, index_file = os.path.join(folder, "blocks"), os.path.join(folder, "index.json")
        blocks = write_partition(batches, path, BLOCK_BYTES, BLOCK_ROWS)
        if not blocks:
            raise ValueError(
                "Empty Spark partition is not allowed in TorchDistributor.train_on_dataframe; "
                "give every partition rows, e.g. by repartition"
            )
        index = Index(
            name="_train_on_dataframe",
            hosts=[socket.gethostname()],
            files=[path],
            blocks=[
                Block(0, block["start"], block["bytes"], block["rows"], block["checksum"]) for block in blocks
            ],
            facts=Facts.together(json.loads(block["facts"]) for block in blocks),
            whole=False,
        )
        with open(index_file, "w", encoding="utf-8") as text:
            json.dump(index.pack(), text)
        yield {contract.ENV_PARTITION_INDEX: index_file}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def partition_data_loader(
    num_samples: int, batch_size: int, num_workers: int = 1, prefetch_factor: int = 2
) -> Any:
    """A torch DataLoader over this rank's partition, inside a function run by `_train_on_dataframe`.

    Gives `num_samples` samples an epoch: the partition's first rows, or its rows again from the first where
    it has fewer. `num_workers` is 0 (load in the rank itself) or 1.

    Raises `RuntimeError` outside such a function.
    """
    if contract.ENV_PARTITION_INDEX not in os.environ:
        raise RuntimeError(
            "there is no partition here: this works in functions run by _train_on_dataframe only"
        )
    from torch.utils.data import DataLoader

    from ..blocks.source import MappedBlocks
    from .dataset import PartitionDataset

    with open(os.environ[contract.ENV_PARTITION_INDEX], encoding="utf-8") as text:
        blocks = MappedBlocks(Index.read(json.load(text)))
    dataset = PartitionDataset(blocks, num_samples)
    if num_workers > 0:
        return DataLoader(dataset, batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor)
    return DataLoader(dataset, batch_size)  # torch refuses a prefetch factor without workers
