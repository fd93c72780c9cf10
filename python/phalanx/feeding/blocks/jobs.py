"""The Spark jobs that write the blocks of a data set, that remove them, and that serve them where a run has no
node: in Python workers, or in executors' JVMs.

Both write the same rows with the same Arrow types, and say the same of them (`feeding/blocks/write.py`). The JVMs do it
sooner, since no row goes through a Python worker.

Under dynamic allocation Spark takes idle executors away, and with them what is on their disks. It leaves those alone
that have a block of its own cache, by `spark.dynamicAllocation.cachedExecutorIdleTimeout`, and that costs no slot.

FEED-3 (jvm-first): the JVMs do it where the jvm stage could be had, unless `spark.phalanx.stage` is `python`; no Python
worker takes part then. Places that only fsspec opens are written to by Python workers.
FEED-71 (held): where Spark takes idle executors away, a block of its cache is left in each that has written blocks
which are not kept, from then until `release`. What is cached is never taken for blocks that are there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...connect.client import is_remote
from ...plumbing.by_value import by_value
from ...plumbing.store import is_uri
from ...spark.driver_jvm import SETTING, why_not
from ...spark.session import starts_executors
from . import write as write_blocks
from .carrier_task import carrier
from .row_hash import HASH, DataRows

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")

HOLDS = "Phalanx: executors with blocks"
"""What Spark's UI calls a cached RDD that holds executors; so it is in the jar."""


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
    content: int
    sequence: int
    facts: dict[str, Any]


class WriteJob(Protocol):
    """Has Spark compute a DataFrame and write its partitions, and do so again where some are gone. What Spark keeps of
    the query, such as shuffled rows, stays for as long as this."""

    def write(self, surviving: Collection[int] = ()) -> list[WrittenBlock]:
        """Has each task write its partition as blocks, but for those that survive; blocks until that is done. Raises
        what Spark raises."""

    def is_settled(self) -> bool:
        """Whether a partition that is computed again has the rows that it had, so that others can stay. Only a job that
        has written knows."""


class BlockJobs(Protocol):
    """Jobs of a session. They hold the calling thread's Spark properties, and are there until they are done."""

    def writing(self, rows: DataRows, folder: str, *, kept: bool) -> WriteJob:
        """What writes a DataFrame into `folder` below Spark's local directories; `folder` is a path or a URI of its own
        for a folder that is `kept`. Starts nothing."""

    def present(self, files: Sequence[tuple[str, str]], tasks: int) -> set[int]:
        """Which of these files, each on a host, are there, as far as one of so many tasks gets to the host."""

    def remove(self, paths: Sequence[str], own: str | None, tasks: int) -> None:
        """Has so many tasks remove these files and folders, and what is called `own` below Spark's local
        directories."""

    def carry(self, spec: bytes, first: int, wanted: Sequence[str], tasks: int) -> None:
        """Has so many tasks be carriers where their hosts are `wanted`, numbered from `first` on, until none is needed
        any more. `spec` is what the hub tells every node. Raises what Spark raises."""

    def release(self) -> None:
        """Lets executors go that have blocks: nobody needs these any more. Again is harmless."""


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
        self._holding: list[_WorkerWriting] = []

    def writing(self, rows: DataRows, folder: str, *, kept: bool) -> WriteJob:
        holds = not kept and starts_executors(self._spark)
        writing = _WorkerWriting(self._spark, rows, folder, kept=kept, holds=holds)
        if holds:
            self._holding.append(writing)
        return writing

    def present(self, files: Sequence[tuple[str, str]], tasks: int) -> set[int]:
        with by_value(write_blocks):
            look = write_blocks.looker(list(files))
            found = self._spark.range(0, tasks, 1, tasks).mapInArrow(look, "file int").distinct().collect()
        return {row.file for row in found}

    def remove(self, paths: Sequence[str], own: str | None, tasks: int) -> None:
        with by_value(write_blocks):
            task = write_blocks.remover(list(paths), own)
            self._spark.range(0, tasks, 1, tasks).mapInArrow(task, "removed int").collect()

    def carry(self, spec: bytes, first: int, wanted: Sequence[str], tasks: int) -> None:
        task = carrier(spec, first, list(wanted))
        self._spark.range(0, tasks, 1, tasks).mapInArrow(task, "served boolean").collect()

    def release(self) -> None:
        for writing in self._holding:
            writing.release()


class _WorkerWriting:
    """Tasks of partitions that survive compute them and write nothing: a DataFrame has no other way to leave some out.
    Where it `holds` executors, the rows that say what was written are cached."""

    def __init__(self, spark: SparkSession, rows: DataRows, folder: str, *, kept: bool, holds: bool) -> None:
        self._spark = spark
        self._remote = is_remote(spark)
        self._holds = holds
        self._cached: list[RDD[Any]] = []
        bounds = write_blocks.BLOCK_BYTES, write_blocks.BLOCK_ROWS
        hashed = rows.hashed()
        with by_value(write_blocks):
            write = write_blocks.writer(hashed.names, folder, *bounds, kept=kept)
            self._written = hashed.frame.mapInArrow(write, write_blocks.SCHEMA)

    def write(self, surviving: Collection[int] = ()) -> list[WrittenBlock]:
        rows = self._cached_rows if self._holds and not self._remote else self._rows
        found = rows(surviving)
        return [WrittenBlock(**{**row.asDict(), "facts": json.loads(row.facts)}) for row in found]

    def _rows(self, surviving: Collection[int]) -> list[Any]:
        if not self._remote:
            told = ",".join(map(str, sorted(surviving))) or None
            self._spark.sparkContext.setLocalProperty(write_blocks.SURVIVING, told)
        try:
            with by_value(write_blocks):
                if self._holds:  # what was cached before is not what is written now
                    self._written.unpersist(blocking=True)
                    self._written.persist()
                return list(self._written.collect())
        finally:
            if not self._remote:
                self._spark.sparkContext.setLocalProperty(write_blocks.SURVIVING, None)

    def _cached_rows(self, surviving: Collection[int]) -> list[Any]:
        from pyspark import RDD, StorageLevel
        from pyspark.serializers import BatchedSerializer, CPickleSerializer

        context = self._spark.sparkContext
        # Each time another RDD of the same plan. That of the first time would have what is gone.
        of_plan = self._written._jdf.javaToPython()
        rows: RDD[Any] = RDD(of_plan, context, BatchedSerializer(CPickleSerializer()))
        self._cached.append(rows.setName(HOLDS).persist(StorageLevel.MEMORY_AND_DISK))
        wanted = [number for number in range(rows.getNumPartitions()) if number not in surviving]
        return list(context.runJob(rows, list, wanted))

    def release(self) -> None:
        """Lets the executors go that it holds."""
        for rows in self._cached:
            rows.unpersist()
        if self._remote:
            with by_value(write_blocks):
                self._written.unpersist()

    def is_settled(self) -> bool:
        if self._remote:
            return False
        level = self._written._jdf.queryExecution().toRdd().outputDeterministicLevel()
        return bool(level.toString() != "INDETERMINATE")


class JvmJobs:
    """In the executors' JVMs, by `dev.phalanx.spark.feeding.BlockJobs` of the jar."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._workers = WorkerJobs(spark)
        self._holds: Any = None

    def writing(self, rows: DataRows, folder: str, *, kept: bool) -> WriteJob:
        if is_uri(folder):
            return self._workers.writing(rows, folder, kept=kept)
        frame = rows.frame.toDF(*rows.names, *([HASH] if rows.is_hashed else []))
        conf = self._spark.conf
        return _JvmWriting(
            self._spark,
            self._jobs().writing(
                frame._jdf.queryExecution(),
                rows.is_hashed,
                conf.get("spark.sql.session.timeZone"),
                conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true",
                folder,
                kept,
                write_blocks.BLOCK_BYTES,
                write_blocks.BLOCK_ROWS,
                self._hold(kept),
            ),
        )

    def _hold(self, kept: bool) -> int | None:
        """The id of the RDD that holds executors; None where none are to be held."""
        if kept or not starts_executors(self._spark):
            return None
        if self._holds is None:
            self._holds = self._jobs().hold(self._context())
        return int(self._holds.id())

    def present(self, files: Sequence[tuple[str, str]], tasks: int) -> set[int]:
        hosts, paths = ([file[part] for file in files] for part in (0, 1))
        told = self._jobs().present(
            self._context(), _list(self._spark, hosts), _list(self._spark, paths), tasks
        )
        return set(json.loads(told))

    def remove(self, paths: Sequence[str], own: str | None, tasks: int) -> None:
        self._jobs().remove(self._context(), _list(self._spark, paths), own, tasks)

    def carry(self, spec: bytes, first: int, wanted: Sequence[str], tasks: int) -> None:
        self._jobs().carry(self._context(), spec, first, _list(self._spark, wanted), tasks)

    def release(self) -> None:
        if self._holds is not None:
            self._holds.unpersist(False)

    def _context(self) -> Any:
        return self._spark.sparkContext._jsc.sc()

    def _jobs(self) -> Any:
        return self._spark.sparkContext._jvm.dev.phalanx.spark.feeding.BlockJobs


class _JvmWriting:
    """By the jar's `BlockWriting`."""

    def __init__(self, spark: SparkSession, writing: Any) -> None:
        self._spark = spark
        self._writing = writing

    def write(self, surviving: Collection[int] = ()) -> list[WrittenBlock]:
        answer = self._writing.write(_list(self._spark, surviving))
        return [
            WrittenBlock(part["partition"], number, part["host"], part["path"], **block)
            for part in json.loads(answer)
            for number, block in enumerate(part["blocks"])
        ]

    def is_settled(self) -> bool:
        return bool(self._writing.isSettled())


def _list(spark: SparkSession, items: Collection[Any]) -> Any:
    found = spark.sparkContext._jvm.java.util.ArrayList()
    for item in items:
        found.add(item)
    return found
