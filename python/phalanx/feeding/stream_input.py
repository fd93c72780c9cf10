"""A streamed data set as the input of the run's own stage."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..driver.preflight import partition_count

if TYPE_CHECKING:
    from .preparation import StreamedFrame

logger = logging.getLogger("phalanx")

_RESTARTS = "spark.phalanx.maxRestarts"


def for_tasks(streamed: StreamedFrame, tasks: int) -> Any:
    """The DataFrame with one partition for each task.

    A barrier stage refuses `coalesce`, so where the number is another one, or isn't known, its rows are shuffled.
    """
    partitions = partition_count(streamed.frame)
    if partitions == tasks:
        return streamed.frame
    has = "an unknown number of" if partitions is None else partitions
    logger.info(
        "The data set %r has %s partitions and the run %d tasks; Spark shuffles its rows into as many (repartition)",
        *(streamed.name, has, tasks),
    )
    return streamed.frame.repartition(tasks)


def check_restarts(name: str, settings: Mapping[str, str]) -> None:
    """Raises `ValueError` where ranks may start again, for whom the rows would not come again."""
    if int(settings.get(_RESTARTS) or 0) > 0:
        raise ValueError(
            f"the data set {name!r} is streamed, so its rows come once, and ranks that start again would miss some; "
            f"use max_restarts=0 ({_RESTARTS}), or give the run the DataFrame itself"
        )
