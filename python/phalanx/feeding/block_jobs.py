"""The Spark jobs that write the blocks of a data set, that remove them, and that serve them where a run has no
node: in Python workers, or in executors' JVMs.

Both write the same rows with the same Arrow types, and say the same of them (`feeding/write_blocks.py`). The JVMs do it
sooner, since no row goes through a Python worker.

FEED-3 (jvm-first): the JVMs do it where the jvm stage could be had, unless `spark.phalanx.stage` is `python`; no Python
worker takes part then. Places that only fsspec opens are written to by Python workers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..plumbing.by_value import by_value
from ..plumbing.store import is_uri
from ..stages.choice import SETTING, why_not
from . import write_blocks
from .carrier_task import carrier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")


class WrittenBlock(NamedTuple):
    """What a task says of a block that it wrote."""

    partition: int
    number: int
    host: str
    path: str
    start: int
    bytes: int
    rows: int
    checksum: int
    facts: dict[str, Any]


class BlockJobs(Protocol):
    """Jobs of a session. They hold the calling thread's Spark properties, and are there until they are done."""

    def write(self, frame: Any, folder: str, *, kept: bool) -> list[WrittenBlock]:
        """Has each task write its partition into `folder`, below one of Spark's local directories; a folder that is
        `kept` is a path or a URI of its own. Raises what Spark raises."""

    def remove(self, folders: Sequence[str], own: str, tasks: int) -> None:
        """Has so many tasks remove these folders, and the one that is called `own` below Spark's local directories."""

    def carry(self, spec: bytes, first: int, wanted: Sequence[str], tasks: int) -> None:
        """Has so many tasks be carriers where their hosts are `wanted`, numbered from `first` on, until none is needed
        any more. `spec` is what the hub tells every node. Raises what Spark raises."""


def block_jobs(spark: SparkSession) -> BlockJobs:
    """The jobs of this session; says which, and why."""
    if spark.conf.get(SETTING, "auto") == "python":
        problem: str | None = f"{SETTING} is python"
    else:
        problem = why_not(spark)
    if problem is None:
        logger.info("Blocks of data sets are written by the executors' JVMs")
        return JvmJobs(spark)
    logger.info("Blocks of data sets are written by Python workers, because %s", problem)
    return WorkerJobs(spark)


class WorkerJobs:
    """In Python workers, by `DataFrame.mapInArrow`: also over Spark Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def write(self, frame: Any, folder: str, *, kept: bool) -> list[WrittenBlock]:
        write = write_blocks.writer(folder, write_blocks.BLOCK_BYTES, write_blocks.BLOCK_ROWS, kept=kept)
        with by_value(write_blocks):
            found = frame.mapInArrow(write, write_blocks.SCHEMA).collect()
        return [WrittenBlock(**{**row.asDict(), "facts": json.loads(row.facts)}) for row in found]

    def remove(self, folders: Sequence[str], own: str, tasks: int) -> None:
        with by_value(write_blocks):
            task = write_blocks.remover(list(folders), own)
            self._spark.range(0, tasks, 1, tasks).mapInArrow(task, "removed int").collect()

    def carry(self, spec: bytes, first: int, wanted: Sequence[str], tasks: int) -> None:
        task = carrier(spec, first, list(wanted))
        self._spark.range(0, tasks, 1, tasks).mapInArrow(task, "served boolean").collect()


class JvmJobs:
    """In the executors' JVMs, by `dev.phalanx.spark.feeding.BlockJobs` of the jar."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._workers = WorkerJobs(spark)

    def write(self, frame: Any, folder: str, *, kept: bool) -> list[WrittenBlock]:
        if is_uri(folder):
            return self._workers.write(frame, folder, kept=kept)
        # Of its own: what Spark keeps of a query that ran, such as shuffled rows, stays as long as its DataFrame.
        query = frame.select("*")._jdf.queryExecution()
        conf = self._spark.conf
        answer = self._jobs().write(
            query,
            conf.get("spark.sql.session.timeZone"),
            conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true",
            folder,
            kept,
            write_blocks.BLOCK_BYTES,
            write_blocks.BLOCK_ROWS,
        )
        return [
            WrittenBlock(part["partition"], number, part["host"], part["path"], **block)
            for part in json.loads(answer)
            for number, block in enumerate(part["blocks"])
        ]

    def remove(self, folders: Sequence[str], own: str, tasks: int) -> None:
        self._jobs().remove(self._spark.sparkContext._jsc.sc(), self._list(folders), own, tasks)

    def carry(self, spec: bytes, first: int, wanted: Sequence[str], tasks: int) -> None:
        self._jobs().carry(self._spark.sparkContext._jsc.sc(), spec, first, self._list(wanted), tasks)

    def _list(self, texts: Sequence[str]) -> Any:
        found = self._spark.sparkContext._jvm.java.util.ArrayList()
        for text in texts:
            found.add(text)
        return found

    def _jobs(self) -> Any:
        return self._spark.sparkContext._jvm.dev.phalanx.spark.feeding.BlockJobs
