"""A gang of tasks from Python: a Spark job for each, its *seat*, over one partition of one RDD.

STAGE-9 (own-fate): a seat waits for an executor by itself, so that Spark starts executors for all that wait, and Spark
may try it again without the others. When one ends badly, the others are cancelled.
STAGE-10 (one-gathers): while a gang gathers, no other of this driver begins to: else each could hold the slots that
the other needs. Where Spark starts no executors, a gang begins only when slots are free for all of it, since seats that
wait go before later jobs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..spark.driver_jvm import barrier_runner
from ..spark.versions import inheriting
from .stage_watch import look_at_scheduler

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

_POLL_S = 0.1


class _OwnQueue:
    """What `BarrierRunner` has, in this process: where the driver's JVM has no jar."""

    _gathers = threading.Lock()

    @classmethod
    def enterGang(cls, millis: int) -> bool:
        return cls._gathers.acquire(timeout=millis / 1000)

    @classmethod
    def leaveGang(cls) -> None:
        cls._gathers.release()


class Gathering:
    """The turn of a gang that gathers; it is over when all seats run, or the gang is over."""

    def __init__(self, leave: Callable[[], object]) -> None:
        self._leave: Callable[[], object] | None = leave

    def end(self) -> None:
        """Lets the next gang begin; again is harmless."""
        leave, self._leave = self._leave, None
        if leave is not None:
            with contextlib.suppress(Exception):  # the JVM has ended, and with it the queue
                leave()


@contextlib.contextmanager
def gathering(context: SparkContext, given_up: Callable[[], bool]) -> Iterator[Gathering]:
    """Waits for the turn to gather, until it is given up: then it goes on without, to no effect. STAGE-10"""
    runner = barrier_runner(context)
    if runner is None:
        runner = _OwnQueue
    entered = False
    while not entered and not given_up():
        entered = bool(runner.enterGang(round(_POLL_S * 1000)))
    turn = Gathering(runner.leaveGang if entered else lambda: None)
    try:
        yield turn
    finally:
        turn.end()


def wait_for_free_slots(context: SparkContext, tag: str, seats: int, given_up: Callable[[], bool]) -> None:
    """Waits until slots are free for all seats, unless Spark starts executors."""
    if (context.getConf().get("spark.dynamicAllocation.enabled") or "").lower() == "true":
        return
    while not given_up() and look_at_scheduler(context, tag).free < seats:
        time.sleep(_POLL_S)


def run_seats(
    spark: SparkSession,
    numbers: RDD[int],
    task: Callable[..., Any],
    *,
    given_up: Callable[[], bool],
    cancel: Callable[[], None],
    meanwhile: Callable[[], None],
) -> None:
    """Runs `task` on each partition, in a job each, with the properties of the calling thread. Returns when all are
    over; `meanwhile` is called now and then.

    Raises what the first seat that failed raised. `cancel` has to end the others then, or when the gang is given up; it
    is called until they have ended, since a seat's job may begin just after.
    """
    context = spark.sparkContext
    failures: list[BaseException] = []

    def sit(partition: int) -> None:
        try:
            context.runJob(numbers, task, [partition])
        except BaseException as problem:
            failures.append(problem)

    threads = []
    for partition in range(numbers.getNumPartitions()):
        # Each has copies of the properties of its own, which its job is submitted with.
        target = inheriting(spark, sit)
        thread = threading.Thread(
            target=target, args=(partition,), name=f"phalanx-seat-{partition}", daemon=True
        )
        threads.append(thread)
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(_POLL_S)
            meanwhile()
            if failures or given_up():
                cancel()
    if failures:
        raise failures[0]
