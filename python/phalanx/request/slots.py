"""How many tasks of a resource profile a classic session can run at once, and how many more it could now.

REQUEST-8 (own-slots): tasks of another profile take slots where they share executors, each the largest share that it
has of a resource. Under dynamic allocation a profile's executors are its own, and so are its slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

OF_APPLICATION = 0
"""Spark's number of the profile that tasks have for which nobody says another."""


def task_slots(context: Any, profile: int = OF_APPLICATION) -> int:
    """How many tasks of this profile the registered executors can run at once."""
    return int(context._jsc.sc().maxNumConcurrentTasks(_profile(context, profile)))


def free_slots(context: Any, profile: int = OF_APPLICATION) -> int:
    """How many more tasks of this profile they could run now."""
    return task_slots(context, profile) - _taken(context, profile)


def task_sets(context: Any) -> Iterator[Any]:
    """The stages that Spark's scheduler has."""
    return _below(context._jsc.sc().taskScheduler().rootPool())


def _taken(context: Any, profile: int) -> int:
    java = context._jsc.sc()
    shares_executors = java.isLocal() or not java.getConf().getBoolean(
        "spark.dynamicAllocation.enabled", False
    )
    taken = 0.0
    for tasks in task_sets(context):
        of_tasks = int(tasks.taskSet().resourceProfileId())
        if of_tasks == profile:
            taken += int(tasks.runningTasks())
        elif shares_executors:
            taken += int(tasks.runningTasks()) * _share(context, of_tasks, profile)
    return math.ceil(taken)


def _share(context: Any, other: int, own: int) -> float:
    theirs, ours = (_profile(context, number).taskResources() for number in (other, own))
    amounts = [(_amount(theirs, name), _amount(ours, name)) for name in ("cpus", "gpu")]
    return max(takes / has for takes, has in amounts if has)


def _profile(context: Any, number: int) -> Any:
    profiles = context._jsc.sc().resourceProfileManager()
    if number == OF_APPLICATION:
        return profiles.defaultResourceProfile()
    return profiles.resourceProfileFromId(number)


def _amount(resources: Any, name: str) -> float:
    found = resources.get(name)
    return float(found.get().amount()) if found.isDefined() else 0.0


def _below(pool: Any) -> Iterator[Any]:
    queue = pool.schedulableQueue()
    if queue is None:
        yield pool
        return
    for member in queue.toArray():
        yield from _below(member)
