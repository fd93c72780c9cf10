"""The data sets of a run, prepared before its ranks start: an ordinary Spark job writes each DataFrame as blocks.

So feeding needs no task slot while ranks hold theirs, and any DataFrame will do: of any partitioning, with shuffles,
retried and adaptive, classic or of Spark Connect.

FEED-31 (refused-first): data that can't become tensors, or can't be read to its end, is refused before any job
starts, in a sentence that names the data set and the column.
FEED-32 (one-owner): the blocks belong to the run, which removes them when it is over, however it ends. Spark removes
them with its local directories where the driver can't any more, or where an executor that has some takes no task.
FEED-33 (reachable): in local mode, where nobody serves blocks of other hosts, such are refused before any rank
starts.
FEED-34 (same-data): blocks that went with an executor are computed again before ranks start again. Where that gives
other data the run fails, and says so: nothing trains on a mixture.
FEED-35 (kept-stays): what is `stored` is written by the first run, read by later ones, and removed by none.
FEED-36 (streamed-once): a run has one `streamed` data set at most, on executors, and never starts its ranks again. It
has no blocks: it is the input of the run's own stage.
FEED-37 (carried): on hosts with blocks where the run has no node, tasks beside it serve them (`feeding/carriers.py`).
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..connect.client import is_remote
from ..driver.spark_version import inheriting
from ..errors import TrainingError
from .block_jobs import block_jobs
from .carriers import Carriers
from .data_store import DataStore
from .index import Block, Facts, Index
from .replicated import Replicated
from .stored import Stored
from .streamed import Streamed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")

# How long Spark may take to hear of a cancel, and to remove what it wrote.
_CANCEL_S = 3.0
_REMOVE_S = 30.0

_ATOMS = {
    *("Byte", "Short", "Integer", "Long", "Float", "Double", "Boolean", "Decimal"),
    *("Date", "Timestamp", "TimestampNTZ", "DayTimeInterval"),
    *("String", "Char", "Varchar", "Binary"),
}


def is_data(argument: object) -> bool:
    """Whether an argument `data` is Phalanx's and not the training function's: it has DataFrames, which can't be sent
    to a function."""
    return isinstance(argument, Mapping) and any(map(_is_ours, argument.values()))


def _is_ours(value: object) -> bool:
    return isinstance(value, (Replicated, Stored, Streamed)) or _is_frame(value)


def _is_frame(value: object) -> bool:
    return type(value).__module__.startswith("pyspark.") and hasattr(value, "mapInArrow")


class _Given(NamedTuple):
    """A data set as a run is given it."""

    frame: Any
    whole: bool
    """Whether every rank takes all rows."""
    store: DataStore | None

    @property
    def columns(self) -> list[list[str]]:
        return [[field.name, field.dataType.simpleString()] for field in self.frame.schema.fields]


class Preparation:
    """The data sets of one run, from the DataFrames to the removal of their blocks.

    Making one starts nothing. Raises `TypeError` for what is no DataFrame or a column that can't be a tensor,
    `ValueError` for streams, for columns that can't be told from one another and for a place that has others, and
    `RuntimeError` where Spark encrypts what it writes to disks.
    """

    def __init__(self, spark: SparkSession, data: Mapping[str, Any], *, local_mode: bool) -> None:
        self._spark = spark
        self._local_mode = local_mode
        self.streamed = _streamed(data, local_mode=local_mode)
        """The data set that the tasks of the run are to have as their input, if there is one."""
        self._given: dict[str, _Given] = {
            name: _given(name, value) for name, value in data.items() if not isinstance(value, Streamed)
        }
        self._check_places()
        if self._given and (spark.conf.get("spark.io.encryption.enabled", None) or "false").lower() == "true":
            raise RuntimeError(
                "spark.io.encryption.enabled is true, and blocks of data sets are not encrypted on local disks; "
                "run(data=...) can't be used here"
            )
        # The same for as long as the run lasts: it compares what it computes again with what there was.
        self._jobs = block_jobs(spark)
        self._id = os.urandom(8).hex()
        self._tag = f"phalanx-data-{self._id}"
        self.folder = self._tag if self._given else ""
        """What the folders of blocks are called; empty where there can be none."""
        self._cancelled = False
        self._indexes: dict[str, Index] = {}
        self._folders: set[str] = set()
        self._broken = False
        """Whether tasks may have left blocks that no index has."""
        self._error: BaseException | None = None
        # Made in the caller's thread, whose Spark properties it is to have; the run may be driven by another.
        self._target = inheriting(spark, self._main)
        self._carriers = Carriers(
            self._jobs, self._tagged, tasks=self._slots, apart=self._speculates, cancel=self._cancel_jobs
        )

    def run(self) -> dict[str, dict[str, Any]]:
        """Prepares the data sets; their packed indexes, by name.

        Raises `TrainingError` where Spark can't compute or write one, also where it was cancelled; `RuntimeError` where
        ranks could not read the blocks.
        """
        self._compute()
        return self._packed()

    def again(self) -> dict[str, dict[str, Any]]:
        """The indexes for another attempt of the run; blocks are computed again where some are gone, or may be.

        Raises as `run`, and `TrainingError` where the data is not what it was.
        """
        before = self._indexes
        files = [
            file
            for index in before.values()
            for file, host in zip(index.files, index.hosts, strict=True)
            if host
        ]
        if self._is_here() and all(map(os.path.exists, files)):
            return self._packed()
        logger.info("Blocks of the data sets have gone with an executor; they are computed again")
        self._remove_files()
        self._indexes = {}
        self._compute()
        for name, index in self._indexes.items():
            was, now = before[name].fingerprint(), index.fingerprint()
            if was != now:
                said = (
                    f"the data set {name!r} is not what it was when the run began ({was}; now {now}): blocks went with "
                    "an executor, and computing them again gave other rows; write the DataFrame to a table, read that"
                )
                raise TrainingError(said, {"kind": "start", "message": said})
        return self._packed()

    def _compute(self) -> None:
        thread = threading.Thread(target=self._target, name="phalanx-prepare", daemon=True)
        if self._given:
            thread.start()
        try:
            while thread.is_alive() and not self._cancelled:
                thread.join(0.05)
        except BaseException:
            self._cancelled = True
            raise
        finally:
            # Again and again: a job that is not there yet is not cancelled.
            late = time.monotonic() + _CANCEL_S
            while self._cancelled and thread.is_alive() and time.monotonic() < late:
                self._cancel_jobs()
                thread.join(0.3)
        if self._error is not None or self._cancelled:
            raise self._failure()

    def _packed(self) -> dict[str, dict[str, Any]]:
        for index in self._indexes.values():
            self._check_place(index)
        packed = {name: index.pack() for name, index in self._indexes.items()}
        return packed if self.streamed is None else {**packed, self.streamed.name: {}}

    def _is_here(self) -> bool:
        """Whether the blocks are on the driver's host."""
        return self._hosts() <= {socket.gethostname()}

    def _hosts(self) -> set[str]:
        return {host for index in self._indexes.values() for host in index.hosts if host}

    def placed(self, attempt: int, hosts: Iterable[str], spec: Callable[[], bytes]) -> None:
        """Has the blocks of all hosts but these, on which the nodes of an attempt are, served beside the run. `spec`
        makes what the hub tells a carrier. Returns at once."""
        self._carriers.placed(attempt, self._hosts() - set(hosts), spec)

    def carried(self, attempt: int, host: str) -> None:
        """The blocks of a host are served."""
        self._carriers.carried(attempt, host)

    def cancel(self) -> None:
        """Ends `run`; waits for nothing."""
        self._cancelled = True

    def remove(self) -> None:
        """Removes the blocks; again is harmless. What can't be removed is logged, and goes with Spark's directories."""
        self._cancelled = True
        self._carriers.close()
        self._remove_files()
        self._given, self.streamed = {}, None

    def _remove_files(self) -> None:
        folders, self._folders = self._folders, set()
        broken, self._broken = self._broken, False
        if self._is_here():
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            folders = {folder for folder in folders if os.path.isdir(folder)}
        if folders or broken:
            everywhere = broken or len(self._hosts()) > 1
            remove = functools.partial(self._remove_there, folders, everywhere=everywhere)
            self._in_time(remove, _REMOVE_S, "removing blocks")

    def _main(self) -> None:
        try:
            self._tag_jobs()
            for name, given in self._given.items():
                if not self._cancelled:
                    self._broken = given.store is None  # until it is known where all its blocks are
                    self._indexes[name] = self._prepared(name, given)
                    self._broken = False
        except BaseException as error:
            self._error = error
        if self._cancelled:  # the run may be over, and nobody else will
            self._remove_files()

    def _tagged(self, target: Callable[..., None]) -> Callable[..., None]:
        """`target` for another thread, with the caller's Spark properties and the tag of this run's jobs."""

        def tagged(*arguments: Any) -> None:
            self._tag_jobs()
            target(*arguments)

        return inheriting(self._spark, tagged)

    def _slots(self) -> int:
        """How many tasks get to every slot, where all are free."""
        return 16 if is_remote(self._spark) else self._spark.sparkContext.defaultParallelism

    def _speculates(self) -> bool:
        """Whether Spark starts slow tasks a second time."""
        return str(self._spark.conf.get("spark.speculation", "false")).lower() == "true"

    def _tag_jobs(self) -> None:
        if is_remote(self._spark):
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)

    def _prepared(self, name: str, given: _Given) -> Index:
        store = given.store
        if store is None:
            index = self._written(name, given, self._tag)
            self._folders.update(map(os.path.dirname, index.files))
        elif store.is_filled:
            logger.info("The data set %r is read from %s, %s", name, store.place, store.origin)
            index = store.index(name, whole=given.whole)
        else:
            application = self._spark.conf.get("spark.app.id", None) or "(unknown)"
            try:
                index = self._written(name, given, store.path(self._tag))
                index = store.keep(index, self._tag, given.columns, application)
            except BaseException:
                store.abandon(self._tag)
                raise
        rows, size = (sum(getattr(block, of) for block in index.blocks) for of in ("rows", "bytes"))
        logger.info(
            "The data set %r has %d rows and %d bytes in %d blocks", name, rows, size, len(index.blocks)
        )
        if not rows:
            logger.warning("The data set %r has no rows, so its loaders have no steps", name)
        return index

    def _written(self, name: str, given: _Given, folder: str) -> Index:
        found = self._jobs.write(given.frame, folder, kept=given.store is not None)
        found.sort(key=lambda block: (block.partition, block.number))
        host_of = {block.path: block.host for block in found}
        files = list(host_of)
        number = {path: at for at, path in enumerate(files)}
        return Index(
            name=name,
            hosts=list(host_of.values()),
            files=files,
            blocks=[
                Block(number[block.path], block.start, block.bytes, block.rows, block.checksum)
                for block in found
            ],
            facts=Facts.together(block.facts for block in found),
            whole=given.whole,
        )

    def _check_places(self) -> None:
        """Raises `ValueError` where a place has other columns, or is that of two data sets."""
        name_at: dict[str, str] = {}
        for name, given in self._given.items():
            if given.store is None:
                continue
            place = given.store.place
            other = name_at.setdefault(place, name)
            if other != name:
                raise ValueError(
                    f"the data sets {other!r} and {name!r} are both stored at {place}; give each its own place"
                )
            difference = given.store.differs(given.columns)
            if difference is not None:
                raise ValueError(
                    f"the data set {name!r} is not what is stored at {place} ({given.store.origin}): {difference}; "
                    "give it another place, or remove what is there"
                )

    def _check_place(self, index: Index) -> None:
        hosts = sorted(set(index.hosts) - {""})
        here = socket.gethostname()
        if self._local_mode and hosts not in ([], [here]):
            raise RuntimeError(
                f"the blocks of the data set {index.name!r} are on {', '.join(hosts)}, and in local mode the ranks are "
                f"on {here} and can't fetch them; use local_mode=False, or executors on the driver's host only"
            )

    def _failure(self) -> TrainingError:
        """Why there are no data sets."""
        if self._cancelled or self._error is None:
            kind, said = "cancelled", "preparing the data sets was cancelled"
        else:
            error = self._error
            kind, said = _native.explain_stage(
                type(error).__name__, str(getattr(error, "java_exception", error))
            )
            said = f"the data sets can't be prepared: {said}"
        failure = TrainingError(said, {"kind": kind, "message": said})
        failure.__cause__ = self._error
        return failure

    def _cancel_jobs(self) -> None:
        cancel = (
            functools.partial(self._spark.interruptTag, self._tag)
            if is_remote(self._spark)
            else functools.partial(self._spark.sparkContext.cancelJobsWithTag, self._tag)
        )
        self._in_time(cancel, _CANCEL_S, "cancelling")

    def _remove_there(self, folders: Iterable[str], *, everywhere: bool) -> None:
        """By a task on the host that has them; what no index has by tasks enough that each executor gets some."""
        tasks = 2 * self._slots() if everywhere else 1
        self._jobs.remove(sorted(folders), self._tag, tasks)

    def _in_time(self, call: Callable[[], object], seconds: float, what: str) -> None:
        """Calls Spark, which may be gone, and a client of which tries for minutes to reach it."""

        def quietly() -> None:
            try:
                call()
            except Exception as problem:  # the session may be gone, and with it the job and the blocks
                logger.debug("%s failed: %s", what, problem)

        thread = threading.Thread(target=quietly, name="phalanx-prepare", daemon=True)
        thread.start()
        thread.join(seconds)


class StreamedFrame(NamedTuple):
    """A streamed data set as a run is given it."""

    name: str
    frame: Any


def _streamed(data: Mapping[str, Any], *, local_mode: bool) -> StreamedFrame | None:
    """FEED-36."""
    names = [name for name, value in data.items() if isinstance(value, Streamed)]
    if not names:
        return None
    if len(names) > 1:
        raise ValueError(
            f"the data sets {names[0]!r} and {names[1]!r} are both streamed, and the tasks of a run have one input; "
            "give the run the smaller one itself"
        )
    (name,) = names
    if local_mode:
        raise ValueError(
            f"the data set {name!r} is streamed, so its rows come from the tasks in which the ranks run, and in local "
            "mode there are none; use local_mode=False, or give the run the DataFrame itself"
        )
    given = data[name].data
    if isinstance(given, (Replicated, Stored, Streamed)):
        raise TypeError(_refused_inside(name, given, "streamed"))
    return StreamedFrame(name, readable(name, given))


def _refused_inside(name: str, inner: Any, outer: str) -> str:
    return (
        f"the data set {name!r} is {outer} and {type(inner).__name__.lower()} at once, but what is streamed comes "
        "once, to one rank, and stays nowhere; take one of the two"
    )


def _given(name: str, value: Any) -> _Given:
    whole = isinstance(value, Replicated)
    kept = value.data if isinstance(value, Replicated) else value
    inner = kept.data if isinstance(kept, Stored) else kept
    if isinstance(inner, Streamed):
        raise TypeError(_refused_inside(name, inner, "stored" if isinstance(kept, Stored) else "replicated"))
    frame = readable(name, kept.data if isinstance(kept, Stored) else kept)
    return _Given(frame, whole, DataStore(kept.uri) if isinstance(kept, Stored) else None)


def readable(name: str, frame: Any) -> Any:
    """The DataFrame, with vectors as arrays.

    Raises as `Preparation`.
    """
    called = f"the data set {name!r}"
    if not _is_frame(frame):
        raise TypeError(f"{called} has to be a Spark DataFrame, not {type(frame).__name__}")
    if frame.isStreaming:
        raise ValueError(
            f"{called} is a stream, which has no end, and an epoch needs one; write it to a table and read that, or "
            "take its micro-batches one by one (foreachBatch)"
        )
    names = [field.name for field in frame.schema.fields]
    if not names:
        raise ValueError(f"{called} has no columns")
    for column in names:
        if names.count(column) > 1:
            raise ValueError(f"{called} has several columns {column!r}; rename them")
    vectors = []
    for field in frame.schema.fields:
        if type(field.dataType).__name__ == "VectorUDT":
            vectors.append(field.name)
        elif not _can_travel(field.dataType):
            raise TypeError(
                f"the column {field.name!r} of {called} is of type {field.dataType.simpleString()}, which can't be a "
                "tensor; cast it or leave it out (df.select)"
            )
    if not vectors:
        return frame
    from pyspark.ml.functions import vector_to_array

    quoted = {column: "`" + column.replace("`", "``") + "`" for column in names}
    return frame.select(
        *(
            vector_to_array(frame[quoted[column]]).alias(column)
            if column in vectors
            else frame[quoted[column]]
            for column in names
        )
    )


def _can_travel(kind: Any) -> bool:
    """Whether a type is one that Spark brings to Arrow, and a loader to tensors or to a transform."""
    name = type(kind).__name__.removesuffix("Type")
    if name == "Array":
        return _can_travel(kind.elementType)
    if name == "Map":
        return _can_travel(kind.keyType) and _can_travel(kind.valueType)
    if name == "Struct":
        return all(_can_travel(field.dataType) for field in kind.fields)
    return name in _ATOMS
