"""The data sets of a run, prepared before its ranks start: an ordinary Spark job writes each DataFrame as blocks.

So feeding needs no task slot while ranks hold theirs, and any DataFrame will do: of any partitioning, with shuffles,
retried and adaptive, classic or of Spark Connect.

FEED-32 (one-owner): the blocks belong to the run, which removes them when it is over, however it ends. Spark removes
them with its local directories where the driver can't any more, or where an executor that has some takes no task.
FEED-33 (reachable): in local mode, where nobody serves blocks of other hosts, such are refused before any rank
starts.
FEED-34 (same-data): blocks that went with an executor are computed again before ranks start again, and no others where
Spark can do that. Where that gives other data the run fails, and says so: nothing trains on a mixture.
FEED-35 (kept-stays): what is `stored` is written by the first run, read by later ones, and removed by none.
FEED-37 (carried): on hosts with blocks where the run has no node, tasks beside it serve them (`blocks/carriers.py`).
FEED-68 (same-order): where Spark may compute the rows in another order each time, each partition is sorted by the rows'
hashes, unless the user has sorted them. `spark.phalanx.data.order` wants no sorting, or that of all rows.
FEED-72 (held-so-long): executors that have blocks are held (FEED-71) until these are removed, however the run ends.
FEED-73 (no-more-executors): where Spark starts executors for tasks that wait, a round of carriers has as many tasks as
slots are free, and at least one.
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
from typing import TYPE_CHECKING, Any

from .. import _native
from ..connect.client import is_remote
from ..errors import TrainingError
from ..request.slots import free_slots
from ..spark.session import starts_executors
from ..spark.versions import inheriting
from .blocks.carriers import Carriers
from .blocks.index import Index
from .blocks.jobs import block_jobs
from .blocks.query_plan import QueryPlan
from .blocks.row_hash import HASH, DataRows
from .blocks.written import WrittenSet
from .given import GivenFrame, given_of, streamed_of
from .stream.streamed import Streamed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")

# How long Spark may take to hear of a cancel, and to remove what it wrote.
_CANCEL_S = 3.0
_REMOVE_S = 30.0


class Preparation:
    """The data sets of one run, from the DataFrames to the removal of their blocks.

    Making one starts nothing. Raises `TypeError` for what is no DataFrame or a column that can't be a tensor,
    `ValueError` for streams, for columns that can't be told from one another and for a place that has others, and
    `RuntimeError` where Spark encrypts what it writes to disks.
    """

    def __init__(
        self,
        spark: SparkSession,
        data: Mapping[str, Any],
        *,
        local_mode: bool,
        order: str = "auto",
        restarts: bool = False,
    ) -> None:
        """`order` is `spark.phalanx.data.order`; where there are no `restarts` nothing is kept for `again`."""
        self._spark = spark
        self._local_mode = local_mode
        self._order = order
        self._restarts = restarts
        self.streamed = streamed_of(data, local_mode=local_mode)
        """The data set that the tasks of the run are to have as their input, if there is one."""
        self._given: dict[str, GivenFrame] = {
            name: given_of(name, value) for name, value in data.items() if not isinstance(value, Streamed)
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
        self._sets: dict[str, WrittenSet] = {}
        """Those of the data sets that are not stored."""
        self._again = False
        self._folders: set[str] = set()
        self._broken = False
        """Whether tasks may have left blocks that no index has."""
        self._error: BaseException | None = None
        # Made in the caller's thread, whose Spark properties it is to have; the run may be driven by another.
        self._target = inheriting(spark, self._main)
        self._carriers = Carriers(
            self._jobs, self._tagged, tasks=self._a_round, apart=self._speculates, cancel=self._cancel_jobs
        )

    @property
    def settings(self) -> dict[str, str]:
        """What the job is told of the data sets."""
        once = {} if self.streamed is None else {"spark.phalanx.maxPreemptions": "0"}
        if not self._given:
            return once
        on_executors = any(given.store is None for given in self._given.values())
        return once | {"phalanx.dataFolder": self.folder, "phalanx.executorBlocks": str(on_executors).lower()}

    def run(self) -> dict[str, dict[str, Any]]:
        """Prepares the data sets; their packed indexes, by name.

        Raises `TrainingError` where Spark can't compute or write one, also where it was cancelled; `RuntimeError` where
        ranks could not read the blocks.
        """
        self._compute()
        return self._packed()

    def again(self) -> dict[str, dict[str, Any]]:
        """The indexes for another attempt of the run; blocks that are gone are computed again.

        Raises as `run`, and `TrainingError` where the data is not what it was.
        """
        paths = [path for written in self._sets.values() for path in written.paths]
        if not (self._is_here() and all(map(os.path.exists, paths))):
            self._again = True
            self._compute()
        return self._packed()

    def _compute(self) -> None:
        thread = threading.Thread(target=self._target, name="phalanx-prepare", daemon=True)
        self._error = None
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
        self._release_executors()
        # With these goes what Spark keeps for them, though whoever has the run keeps this object.
        self._given, self._sets, self.streamed = {}, {}, None

    def _remove_files(self) -> None:
        folders, self._folders = self._folders, set()
        broken, self._broken = self._broken, False
        if self._is_here():
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            folders = {folder for folder in folders if os.path.isdir(folder)}
        if folders or broken:
            everywhere = broken or len(self._hosts()) > 1
            remove = functools.partial(self._remove_there, folders, own=self._tag, everywhere=everywhere)
            self._in_time(remove, _REMOVE_S, "removing blocks")

    def _release_executors(self) -> None:
        self._in_time(self._jobs.release, _REMOVE_S, "letting executors go")

    def _main(self) -> None:
        try:
            self._tag_jobs()
            if self._again:
                self._write_again()
            else:
                self._write()
        except BaseException as error:
            self._error = error
        if self._cancelled:  # the run may be over, and nobody else will
            self._remove_files()
            self._release_executors()

    def _write(self) -> None:
        for name, given in self._given.items():
            if not self._cancelled:
                self._broken = given.store is None  # until it is known where all its blocks are
                self._indexes[name] = self._prepared(name, given)
                self._broken = False

    def _write_again(self) -> None:
        """Has the blocks written again that are gone; all of a data set's where a part can't be."""
        for name, written in self._sets.items():
            gone = self._gone(written)
            if not gone or self._cancelled:
                continue
            logger.info("%d files of the data set %r were lost with an executor", len(gone), name)
            self._broken = True
            if not written.can_be_mended():
                self._in_time(
                    functools.partial(self._remove_there, written.paths, own=None), _REMOVE_S, "removing"
                )
            difference = written.write_again(gone)
            self._settle(name, written)
            self._broken = False
            if difference is not None:
                said = (
                    f"the data set {name!r} has changed since the run began: blocks were lost with an "
                    f"executor, and computed again {difference}"
                )
                raise TrainingError(said, {"kind": "start", "message": said})

    def _gone(self, written: WrittenSet) -> set[str]:
        """The files of a data set that are gone, or are where no task gets to."""
        if self._is_here():
            return {path for path in written.paths if not os.path.exists(path)}
        present = self._jobs.present(written.files, self._many_tasks())
        return {path for number, path in enumerate(written.paths) if number not in present}

    def _settle(self, name: str, written: WrittenSet) -> None:
        self._indexes[name] = written.index()
        self._folders.update(map(os.path.dirname, written.paths))

    def _tagged(self, target: Callable[..., None]) -> Callable[..., None]:
        """`target` for another thread, with the caller's Spark properties and the tag of this run's jobs."""

        def tagged(*arguments: Any) -> None:
            self._tag_jobs()
            target(*arguments)

        return inheriting(self._spark, tagged)

    def _slots(self) -> int:
        """How many tasks get to every slot, where all are free."""
        return 16 if is_remote(self._spark) else self._spark.sparkContext.defaultParallelism

    def _a_round(self) -> int:
        """How many tasks a round of carriers has. FEED-73"""
        if is_remote(self._spark) or not starts_executors(self._spark):
            return self._slots()
        return max(1, free_slots(self._spark.sparkContext))

    def _speculates(self) -> bool:
        """Whether Spark starts slow tasks a second time."""
        return str(self._spark.conf.get("spark.speculation", "false")).lower() == "true"

    def _tag_jobs(self) -> None:
        if is_remote(self._spark):
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)

    def _prepared(self, name: str, given: GivenFrame) -> Index:
        store = given.store
        if store is None:
            written = self._written(name, given, self._tag)
            self._settle(name, written)
            index = self._indexes[name]
            if self._restarts:
                self._sets[name] = written
        elif store.is_filled:
            logger.info("The data set %r is read from %s, %s", name, store.place, store.origin)
            if store.is_of_another_query(self._query(given)):
                logger.warning(
                    "The data set %r is read from %s, which a different query has filled (%s); if this one "
                    "gives other rows, give it another place, or remove what is there",
                    *(name, store.place, store.origin),
                )
            index = store.index(name, whole=given.whole)
        else:
            application = self._spark.conf.get("spark.app.id", None) or "(unknown)"
            try:
                index = self._written(name, given, store.path(self._tag)).index()
                index = store.keep(index, self._tag, given.columns, application, self._query(given))
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

    def _written(self, name: str, given: GivenFrame, folder: str) -> WrittenSet:
        rows = self._in_order(name, given.frame)
        written = WrittenSet(
            name, self._jobs.writing(rows, folder, kept=given.store is not None), given.whole
        )
        written.write()
        return written

    def _in_order(self, name: str, frame: Any) -> DataRows:
        """FEED-68. Only what sorts needs the hashes here."""
        rows = DataRows.of(frame)
        if self._order == "content":
            rows = rows.hashed()
            return rows._replace(frame=rows.frame.orderBy(HASH))
        if self._order == "computed":
            return rows
        plan = QueryPlan(rows.frame)
        if plan.is_sorted or plan.is_settled:
            return rows
        logger.info(
            "The rows of the data set %r are sorted by their hashes, since Spark may compute them in another order "
            "each time (spark.phalanx.data.order)",
            name,
        )
        rows = rows.hashed()
        return rows._replace(frame=rows.frame.sortWithinPartitions(HASH))

    def _query(self, given: GivenFrame) -> dict[str, str]:
        """What tells the query from others."""
        return {"spark": self._spark.version, "digest": QueryPlan(given.frame).digest()}

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
            if isinstance(error, TrainingError):
                return error
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

    def _remove_there(self, paths: Iterable[str], *, own: str | None, everywhere: bool = True) -> None:
        """By a task on the host that has them; what no index has by tasks enough that each executor gets some."""
        self._jobs.remove(sorted(paths), own, self._many_tasks() if everywhere else 1)

    def _many_tasks(self) -> int:
        """So many that each executor gets some, as a rule."""
        return 2 * self._slots()

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
