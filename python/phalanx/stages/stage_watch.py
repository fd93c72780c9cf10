"""Tells the hub whether Spark has started a stage's tasks, how many slots are free for them until then, and which of
them run on executors that Spark decommissions.

The hub gives tasks their time to join once they run (DRIVER-42). Spark starts all tasks of a barrier stage at once, and
until it can, others hold the slots that they need.

STAGE-7 (looks): a stage of Spark's is looked at, once a second until a look shows that tasks run, and then less often,
by one thread, which ends with the stage. Looking never fails a run: where it fails, it ends, or, once tasks run, begins
anew half a minute later. Over Spark Connect the server's plugin is asked; without it nobody looks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..connect.relay import has_plugin
from ..connect.server import STAGE, ConnectServer, Refused
from ..request.slots import OF_APPLICATION, free_slots, task_sets, task_slots
from ..spark.driver_jvm import own_runner
from .gathering import is_gathering

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..request.run_profile import RunProfile

logger = logging.getLogger("phalanx")

# Most stages have their tasks by then.
_FIRST_S = 0.5


class Pace(NamedTuple):
    """How many seconds are between two looks."""

    waiting: float
    """While no tasks run."""
    running: float
    """Once they do: Spark may decommission their executors."""


PACE = Pace(1.0, 2.0)
# Without the jar a look takes a call into the JVM for each executor that has tasks of the stage.
WITHOUT_JAR = Pace(1.0, 5.0)
# Each question to a Spark Connect server is an operation in its UI. The hub believes a look for longer.
OVER_CONNECT = Pace(5.0, 30.0)
_ASK_S = 10.0
# When Spark is looked at again that did not tell while tasks ran: it may be a network.
_AGAIN_S = 30.0
# How long a last look may take.
_END_S = 3.0

_TAGS = "spark.job.tags"
"""The property of a Spark job that has its tags."""


class StageLook(NamedTuple):
    """What a look at Spark shows of a stage."""

    running: int | None
    """How many of its tasks run; None if it isn't submitted yet."""
    slots: int
    """How many task slots there are."""
    free: int
    """How many of these are free."""
    leaving: tuple[int, ...] = ()
    """Which of its tasks run on executors that Spark decommissions, by their attempt ids."""


class StageWatch:
    """Looks at a stage from `with` on, and tells what it sees."""

    def __init__(
        self,
        look: Callable[[], StageLook],
        tell: Callable[[StageLook], None],
        *,
        pace: Pace = PACE,
    ) -> None:
        self._look = look
        self._tell = tell
        self._pace = pace
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="phalanx-stage-watch", daemon=True)

    def __enter__(self) -> StageWatch:
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_END_S)

    def _watch(self) -> None:
        pause, runs = _FIRST_S, False
        while not self._over.wait(pause):
            try:
                seen = self._look()
                self._tell(seen)
            except Exception as problem:  # the JVM or the hub is going, or this Spark doesn't tell
                logger.debug("Spark doesn't say how the stage stands: %s", problem)
                if not runs or isinstance(problem, Refused):
                    return
                pause = _AGAIN_S
                continue
            runs = runs or bool(seen.running)
            pause = self._pace.running if seen.running else self._pace.waiting


def look_at_scheduler(
    context: Any,
    tag: str,
    seats: int = 0,
    profile: RunProfile | None = None,
    executors: dict[int, str] | None = None,
) -> StageLook:
    """How the scheduler of a classic session has the barrier stage of the job with this tag; of so many `seats` the
    jobs with it, of which none counts as running before all do. Slots are those of its profile.

    `executors` remembers, between the looks at one stage, which executor each of its tasks has.

    The scheduler itself is asked. What the status tracker knows is written at intervals, and may be 10 s old. A gang
    that waits for free slots, though it has no jobs yet, waits.
    """
    runner = own_runner(context)
    number = OF_APPLICATION if profile is None else profile.id
    if runner is not None:  # one call, however many seats there are
        return _look_of(str(runner.stageLook(context._jsc.sc(), tag, seats, number)))
    slots, free = task_slots(context, number), max(0, free_slots(context, number))
    # Behind the others: slots that its own tasks have taken by now are never told to be other jobs'.
    running = None
    for tasks in task_sets(context):
        # Earlier stages of a DataFrame have the same tag.
        if (seats or tasks.isBarrier()) and tag in _tags(tasks):
            running = (running or 0) + int(tasks.runningTasks())
    if (running is None and is_gathering(tag)) or (running is not None and running < seats):
        running = 0
    return StageLook(
        running,
        slots,
        free,
        _leaving(context, tag, {} if executors is None else executors) if running else (),
    )


def _leaving(context: Any, tag: str, executors: dict[int, str]) -> tuple[int, ...]:
    """The tasks of the jobs with this tag on executors that Spark decommissions; it tells nobody of them."""
    scheduler = context._jsc.sc().taskScheduler()
    running = []
    for tasks in task_sets(context):
        if tag in _tags(tasks):
            for task in map(int, str(tasks.runningTasksSet().mkString(" ")).split()):
                if task not in executors:
                    executors[task] = str(tasks.taskInfos().apply(task).executorId())
                running.append(task)
    going = {
        executor
        for executor in {executors[task] for task in running}
        if scheduler.getExecutorDecommissionState(executor).isDefined()
    }
    return tuple(task for task in running if executors[task] in going)


def look_through_server(
    spark: SparkSession, server: ConnectServer, tag: str, seats: int = 0, profile: RunProfile | None = None
) -> StageLook:
    """The same of a client of Spark Connect, by the plugin of its server.

    Raises `Refused` where that doesn't tell, and `Away` where it can't be reached.
    """
    if not has_plugin(spark):
        raise Refused("the server doesn't have Phalanx's plugin")
    number = OF_APPLICATION if profile is None else profile.id
    return _look_of(server.ask(f"{tag} {seats} {number}".encode(), _ASK_S, STAGE).decode())


def _look_of(numbers: str) -> StageLook:
    running, slots, free, *leaving = map(int, numbers.split())
    return StageLook(running if running >= 0 else None, slots, free, tuple(leaving))


def _tags(tasks: Any) -> list[str]:
    properties = tasks.taskSet().properties()
    found = None if properties is None else properties.getProperty(_TAGS)
    return [] if found is None else str(found).split(",")
