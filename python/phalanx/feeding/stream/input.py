"""A streamed data set as the input of the run's own stage."""

from __future__ import annotations

import logging
from typing import Any

from ...request.preflight import partition_count
from ..blocks.query_plan import QueryPlan

logger = logging.getLogger("phalanx")


def for_tasks(name: str, frame: Any, tasks: int) -> Any:
    """The DataFrame with one partition for each task.

    A barrier stage takes no partitions that are put together from others (`coalesce`, `union`), so there its rows are
    shuffled, and where the number is another one, or isn't known.
    """
    partitions = partition_count(frame)
    if partitions != tasks:
        has = f"{'an unknown number of' if partitions is None else partitions} partitions and the run {tasks} tasks"
    elif QueryPlan(frame).regroups:
        has = "partitions of several others' rows, which the run's tasks can't have"
    else:
        return frame
    logger.info("The data set %r has %s; Spark shuffles its rows into as many (repartition)", name, has)
    return frame.repartition(tasks)


def check_restarts(name: str, restarts: int) -> None:
    """Raises `ValueError` where ranks may start again, for whom the rows would not come again."""
    if restarts > 0:
        raise ValueError(
            f"the data set {name!r} is streamed, so its rows come once, and ranks that start again would miss some; "
            "use max_restarts=0 (spark.phalanx.maxRestarts), or pass the DataFrame without streamed()"
        )
