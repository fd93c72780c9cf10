"""What Spark's driver knows of its executors."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple


class Executor(NamedTuple):
    """One that is there, or was."""

    number: str
    host: str
    active: bool
    failed_tasks: int
    reason: str
    """Why it ended, as Spark says."""


def running_tasks(spark: Any, tag: str) -> int | None:
    """How many tasks of the jobs with this tag run now; None where Spark doesn't tell."""
    with contextlib.suppress(Exception):
        tracker = spark.sparkContext._jsc.sc().statusTracker()
        stages = [
            stage
            for job in tracker.getJobIdsForTag(tag)
            for stage in tracker.getJobInfo(job).get().stageIds()
        ]
        return sum(int(tracker.getStageInfo(stage).get().numActiveTasks()) for stage in stages)
    return None


def executors(spark: Any) -> list[Executor]:
    """All that the application has had; none in local mode, and where Spark doesn't tell."""
    found = []
    with contextlib.suppress(Exception):  # a client of Spark Connect has no JVM to ask
        told = spark.sparkContext._jsc.sc().statusStore().executorList(False).iterator()
        while told.hasNext():
            one = told.next()
            if one.id() != "driver":
                why = one.removeReason()
                found.append(
                    Executor(
                        number=str(one.id()),
                        host=str(one.hostPort()).rpartition(":")[0].strip("[]"),
                        active=bool(one.isActive()),
                        failed_tasks=int(one.failedTasks()),
                        reason=str(why.get()) if why.isDefined() else "Spark doesn't say why",
                    )
                )
    return found
