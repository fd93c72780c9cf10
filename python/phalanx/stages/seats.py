"""A gang of tasks from Python: a Spark job for each, its *seat*, over one partition of one RDD.

STAGE-9 (own-fate): a seat waits for an executor by itself, so that Spark starts executors for all that wait, and tries
again alone the seat of an executor that is lost. Where it has tried often enough, the seat is submitted again, three
times. What a node raises is the seat's result, since Spark would try that again, too. It does only where the node can't
reach the driver, or was told to end though the run goes on. When a seat ends badly, the others are cancelled.

Where the driver has the jar, `dev.phalanx.spark.driver.Seats` does all that. Else each seat takes a thread here, and
another of the JVM.
"""

from __future__ import annotations

import functools
import logging
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
        given_up: Callable[[], bool],
        cancel: Callable[[], None],
        profile: RunProfile | None = None,
    ) -> None:
        self._spark, self._numbers, self._tag = spark, numbers, tag
        self._profile = profile
        self._given_up, self._cancel = given_up, cancel
        self._count: int = numbers.getNumPartitions()
        self._failures: list[BaseException] = []

    def run(self, task: Callable[..., Any], all_run: threading.Event) -> None:
        """Runs `task` on each partition, with the properties of the calling thread. Returns when all are over, or the
        gang was given up before it began. The next gang may gather once `all_run` is set.

        Raises what the first seat that failed raised.
        """
        context, seat = self._spark.sparkContext, _as_result(task)
        runner = own_runner(context)
        if runner is not None:
            rows = self._numbers.mapPartitions(seat)
            # As bytes, not pickled.
            rows._bypass_serializer = True
            runner.runPythonSeats(rows._jrdd, OF_APPLICATION if self._profile is None else self._profile.id)
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
            if turn.is_held and self._has_room():
                return True
            time.sleep(_POLL_S)
        return False

    def _has_room(self) -> bool:
        if starts_executors(self._spark):
            return True
        context = self._spark.sparkContext
        return look_at_scheduler(context, self._tag, self._count, self._profile).free >= self._count

    def _run(self, task: Callable[..., Any], turn: gathering.Turn, all_run: threading.Event) -> None:
        threads = [
            threading.Thread(
                # Each has copies of the properties of its own, which its job is submitted with.
                target=self._recording(inheriting(self._spark, functools.partial(self._sit, task))),
                args=(partition,),
                name=f"phalanx-seat-{partition}",
                daemon=True,
            )
            for partition in range(self._count)
        ]
        for thread in threads:
            thread.start()
        cancelled_at = -_CANCEL_S
        for thread in threads:
            while thread.is_alive():
                thread.join(_POLL_S)
                if all_run.is_set():
                    turn.close()
                now = time.monotonic()
                if (self._failures or self._given_up()) and now - cancelled_at >= _CANCEL_S:
                    self._cancel()  # again and again: a seat's job may begin just after
                    cancelled_at = now

    def _sit(self, task: Callable[..., Any], partition: int) -> None:
        for submission in range(1, _SUBMISSIONS + 1):
            try:
                problems = self._spark.sparkContext.runJob(self._numbers, task, [partition])
            except Exception as error:
                if self._failures or self._given_up():
                    raise
                kind, said = explain(error)
                if kind != "lost_node" or submission == _SUBMISSIONS:
                    raise
                logger.warning("The task of partition %d is submitted again: %s", partition, said)
            else:
                for problem in problems:
                    raise RuntimeError(problem.decode())
                return

    def _recording(self, target: Callable[..., None]) -> Callable[..., None]:
        def recording(partition: int) -> None:
            try:
                target(partition)
            except BaseException as problem:
                self._failures.append(problem)

        return recording


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
