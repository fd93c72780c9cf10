"""A gang of tasks from Python: a Spark job for each, its *seat*, over one partition of one RDD.

STAGE-9 (own-fate): a seat waits for an executor by itself, so that Spark starts executors for all that wait, and tries
again alone the seat of an executor that is lost. Where it has tried often enough, the seat is submitted again, three
times. What a node raises is the seat's result, since Spark would try that again, too. It does only where the node can't
reach the driver, or was told to end though the run goes on. When a seat ends badly, the others are cancelled.

STAGE-13 (seats-beside): a seat that the hub wants once more is another job beside those that it has, and none of them
ends another, or the gang, by its end: the seat has ended well when one has, and badly when all have. When the hub says
which has the seat, the others are cancelled.

STAGE-14 (least-is-enough): a gang that goes on with fewer tasks than it asks for is submitted as many seats at a time
as there are free slots, from its least number on. It has gathered once so many run.

Where the driver has the jar, `dev.phalanx.spark.driver.Seats` does all that. Else each seat takes a thread here, and
another of the JVM.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..request.slots import OF_APPLICATION
from ..spark.driver_jvm import own_runner
from ..spark.session import starts_executors
from ..spark.versions import inheriting
from . import gathering
from .spark_errors import explain
from .stage_watch import look_at_scheduler

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

    from ..request.run_profile import RunProfile

logger = logging.getLogger("phalanx")

_POLL_S = 0.1

# How often slots are looked for that a gang can have besides those that it needs.
_LOOK_S = 1.0

# How often Spark is told to cancel a gang's jobs: it looks at all of them.
_CANCEL_S = 1.0

_JOB_GROUP = "spark.jobGroup.id"

# How often a seat is submitted, at most.
_SUBMISSIONS = 4

# The property of a Spark job that says of which gang it is; `dev.phalanx.spark.ui.RunStore` reads it.
_GANG_PROPERTY = "phalanx.gang"


class Seats:
    """The seats of a gang, a partition of `numbers` each.

    tag             that of their jobs, which the calling thread's properties have
    least           with how many of them the run goes on
    given_up        whether the run is to end
    cancel          cancels the jobs with the tag; may be called again
    profile         that of `numbers`
    """

    def __init__(
        self,
        spark: SparkSession,
        numbers: RDD[int],
        tag: str,
        *,
        least: int,
        given_up: Callable[[], bool],
        cancel: Callable[[], None],
        profile: RunProfile | None = None,
    ) -> None:
        self._spark, self._numbers, self._tag = spark, numbers, tag
        self._profile = profile
        self._runner = own_runner(spark.sparkContext)
        self._given_up, self._cancel = given_up, cancel
        self._count: int = numbers.getNumPartitions()
        self._least = least
        # How many have been submitted, from the first on, and when more were looked for.
        self._submitted, self._looked_at = 0, 0.0
        self._failures: list[BaseException] = []
        # The jobs of each partition that are not over, by tags of their own, and the partitions that have ended well.
        self._jobs: dict[int, set[str]] = {partition: set() for partition in range(self._count)}
        self._ended: set[int] = set()
        # The stages whose jobs have the seats of partitions that have others.
        self._taken: dict[int, int] = {}
        self._numbering = itertools.count(1)
        self._lock = threading.Lock()
        # The partitions whose seats are to be submitted once more; None when a job is over.
        self._news: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def run(self, task: Callable[..., Any], all_run: threading.Event) -> None:
        """Runs `task` on each partition, with the properties of the calling thread. Returns when all are over, or the
        gang was given up before it began. The next gang may gather once `all_run` is set.

        Raises what the first seat that failed raised.
        """
        context, seat = self._spark.sparkContext, _as_result(task)
        if self._runner is not None:
            rows = self._numbers.mapPartitions(seat)
            # As bytes, not pickled.
            rows._bypass_serializer = True
            self._runner.runPythonSeats(
                rows._jrdd, self._least, OF_APPLICATION if self._profile is None else self._profile.id
            )
            return
        with gathering.join(self._tag, context.getLocalProperty(_JOB_GROUP)) as turn:
            if self._may_begin(turn):
                context.setLocalProperty(_GANG_PROPERTY, self._tag)
                self._run(seat, turn, all_run)
            if self._failures:
                kind, said = explain(self._failures[0])
                if kind == "cancelled":
                    gathering.cancel_with(said)
                raise self._failures[0]

    def _may_begin(self, turn: gathering.Turn) -> bool:
        """Waits for the turn and, unless Spark starts executors, until slots are free for all seats: seats that wait
        go before later jobs. False if the gang was given up meanwhile."""
        while not self._given_up():
            if turn.cancelled is not None:
                raise RuntimeError(turn.cancelled)
            if turn.is_held and self._room() >= self._least:
                return True
            time.sleep(_POLL_S)
        return False

    def _room(self) -> int:
        """For how many seats there are slots, or may come."""
        if starts_executors(self._spark):
            return self._count
        return look_at_scheduler(self._spark.sparkContext, self._tag, self._least, self._profile).free

    def _submit_those_that_fit(self, task: Callable[..., Any]) -> None:
        """Submits the next seats: seats that wait for slots go before later jobs."""
        end = self._count
        if self._least < end:
            end = min(end, self._submitted + max(self._room(), self._least - self._submitted))
        for partition in range(self._submitted, end):
            self._submit(task, partition)
        self._submitted, self._looked_at = end, time.monotonic()

    def _looks_for_room(self) -> bool:
        return self._submitted < self._count and time.monotonic() - self._looked_at > _LOOK_S

    def add(self, partition: int) -> None:
        """Submits the seat of a partition once more. Returns at once."""
        if self._runner is None:
            self._news.put(partition)
        else:
            self._runner.addSeat(self._tag, partition)

    def end_others(self, partition: int, stage: int) -> None:
        """Has the jobs of a partition cancelled but for that of this stage. Returns at once."""
        if self._runner is None:
            self._taken[partition] = stage
            self._news.put(None)
        else:
            self._runner.endOtherSeats(self._tag, partition, stage)

    def _run(self, task: Callable[..., Any], turn: gathering.Turn, all_run: threading.Event) -> None:
        self._submit_those_that_fit(task)
        cancelled_at = -_CANCEL_S
        while any(self._jobs.values()):
            with contextlib.suppress(queue.Empty):
                wanted = self._news.get(timeout=_POLL_S)
                if wanted is not None and wanted not in self._ended and not self._is_over():
                    self._submit(task, wanted)
            for partition, stage in list(self._taken.items()):
                if self._cancel_others(partition, stage):
                    del self._taken[partition]
            if all_run.is_set():
                turn.close()
            if self._looks_for_room() and not self._is_over():
                self._submit_those_that_fit(task)
            now = time.monotonic()
            if self._is_over() and now - cancelled_at >= _CANCEL_S:
                self._cancel()  # again and again: a seat's job may begin just after
                cancelled_at = now

    def _cancel_others(self, partition: int, stage: int) -> bool:
        """Cancels the jobs of a partition but for that of this stage; false if Spark doesn't say yet which that is."""
        context = self._spark.sparkContext
        tracker, tags = context._jsc.sc().statusTracker(), list(self._jobs[partition])

        def is_its(tag: str) -> bool:
            infos = [context.statusTracker().getJobInfo(job) for job in tracker.getJobIdsForTag(tag)]
            return any(info is not None and stage in info.stageIds for info in infos)

        its = set(filter(is_its, tags))
        if its:
            for tag in set(tags) - its:
                context.cancelJobsWithTag(tag)
        return bool(its) or len(tags) < 2

    def _is_over(self) -> bool:
        return bool(self._failures) or len(self._ended) == self._count or self._given_up()

    def _submit(self, task: Callable[..., Any], partition: int) -> None:
        tag = f"{self._tag}-{partition}-{next(self._numbering)}"
        with self._lock:
            self._jobs[partition].add(tag)
        # It has copies of the properties of its own, which its job is submitted with.
        sit = inheriting(self._spark, functools.partial(self._sit, task, partition, tag))
        threading.Thread(target=sit, name=f"phalanx-seat-{partition}", daemon=True).start()

    def _sit(self, task: Callable[..., Any], partition: int, tag: str) -> None:
        problem: BaseException | None = None
        try:
            self._spark.sparkContext.addJobTag(tag)
            self._sit_through(task, partition)
        except BaseException as error:
            problem = error
        with self._lock:
            self._jobs[partition].discard(tag)
            if problem is None:
                self._ended.add(partition)
            elif partition not in self._ended and not self._jobs[partition]:
                self._failures.append(problem)
            else:
                logger.debug("A job of partition %d is over, beside another: %s", partition, problem)
        self._news.put(None)

    def _sit_through(self, task: Callable[..., Any], partition: int) -> None:
        for submission in range(1, _SUBMISSIONS + 1):
            try:
                problems = self._spark.sparkContext.runJob(self._numbers, task, [partition])
            except Exception as error:
                if self._is_over():
                    raise
                kind, said = explain(error)
                if kind != "lost_node" or submission == _SUBMISSIONS:
                    raise
                logger.warning("The task of partition %d is submitted again: %s", partition, said)
            else:
                for problem in problems:
                    raise RuntimeError(problem.decode())
                return


def _as_result(task: Callable[..., Any]) -> Callable[[Iterable[Any]], Iterator[bytes]]:
    # Nested, it travels by value, as the task does.
    def seat(rows: Iterable[Any]) -> Iterator[bytes]:
        import traceback

        try:
            return iter(task(rows))
        except Exception as problem:
            if getattr(problem, "kind", None) in ("unreachable", "cancelled"):
                raise
            traceback.print_exc()
            said = "".join(traceback.format_exception_only(type(problem), problem)).strip()
            return iter([said.encode()])

    return seat
