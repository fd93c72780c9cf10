"""A DataFrame's partitions, one for each task, as files that the task's ranks read.

DF-1 (ranks-only): only the ranks are told where the files are. The environment of Spark's reused Python worker stays as
it is.
DF-2 (files-go): the files are gone when the task's `with` block ends.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

ARROW_FILE = "SPARK_PARTITION_ARROW_DATA_FILE"
SCHEMA_FILE = "SPARK_DATAFRAME_SCHEMA_FILE"


@contextmanager
def partition_files(batches: Iterable[Any], schema: str, directory: str) -> Iterator[dict[str, str]]:
    """Writes a partition's Arrow batches under `directory` (one of Spark's local ones: data may be large).

    Gives the environment that tells ranks where they are. `schema` is `df.schema.json()`.

    Raises `ValueError` for a partition without rows, `OSError` where it can't be written.
    """
    import pyarrow

    folder = tempfile.mkdtemp(prefix="phalanx-", dir=directory)
    try:
        arrow_file, schema_file = os.path.join(folder, "data.arrow"), os.path.join(folder, "schema.json")
        rows = 0
        with open(arrow_file, "wb") as file:
            writer = None
            for batch in batches:
                rows += batch.num_rows
                writer = writer or pyarrow.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
        if rows == 0:
            raise ValueError(
                "Empty Spark partition is not allowed in TorchDistributor.train_on_dataframe; "
                "give every partition rows, e.g. by repartition"
            )
        with open(schema_file, "w", encoding="utf-8") as text:
            text.write(schema)
        yield {ARROW_FILE: arrow_file, SCHEMA_FILE: schema_file}
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
    from pyspark.ml.torch.data import _SparkPartitionTorchDataset
    from pyspark.sql.types import StructType
    from torch.utils.data import DataLoader

    if ARROW_FILE not in os.environ:
        raise RuntimeError(
            "there is no partition here: this works in functions run by _train_on_dataframe only"
        )
    with open(os.environ[SCHEMA_FILE], encoding="utf-8") as text:
        schema = StructType.fromJson(json.load(text))
    dataset = _SparkPartitionTorchDataset(os.environ[ARROW_FILE], schema, num_samples)
    if num_workers > 0:
        return DataLoader(dataset, batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor)
    return DataLoader(dataset, batch_size)  # torch refuses a prefetch factor without workers
