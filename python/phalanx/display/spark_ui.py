"""Tells the JVM's SparkContext how a run stands, for the tab of Spark's UI and for the event log.

It also answers what the tab asks: the ranks' stacks. A driver hears of that when it tells the next snapshot, and
answers in a thread of its own, so that it goes on telling.

DISPLAY-10 (never-disturbs): telling is a thread of its own, at most once a second. It never fails a run, and
a run waits for it only at its end, for the last state, and not for long. Over Spark Connect and without the jar nothing
is told.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from typing import TYPE_CHECKING, Any

from ..connect.client import is_remote
from ..run.observer import ObservedRun, Observer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")

# A run of a moment is told once, when it is over: nobody would see more of it, and it has better things to do.
_FIRST_S = 0.5
_INTERVAL_S = 1.0
# How long the end of a run waits for its last state to be told.
_LAST_S = 2.0


class SparkUi(Observer):
    """Tells Spark's UI the snapshots of a run."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def started(self, run: ObservedRun, *, waiting: bool) -> None:
        """Begins, where there is a JVM to tell."""
        if not is_remote(self._spark):
            self._thread = threading.Thread(target=self._tell, args=(run,), name="phalanx-ui", daemon=True)
            self._thread.start()

    def closed(self) -> None:
        """Tells the last state."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LAST_S)

    def _tell(self, run: ObservedRun) -> None:
        try:
            posts = None
            is_last = self._over.wait(_FIRST_S)
            while True:
                if posts is None:
                    posts = _posts(self._spark)
                snapshot = run.snapshot()
                if posts.tell(json.dumps(snapshot)) == "stacks" and not is_last:
                    answer = threading.Thread(
                        target=self._answer,
                        args=(posts, run, snapshot["run"]),
                        name="phalanx-ui-stacks",
                        daemon=True,
                    )
                    answer.start()
                if is_last:
                    return
                is_last = self._over.wait(_INTERVAL_S)
        except Exception as error:  # the JVM is going, or hasn't the jar, or the session is another thing
            logger.debug("A run can't be shown in Spark's UI: %s", error)

    def _answer(self, posts: Any, run: ObservedRun, job: str) -> None:
        """Tells the tab what the ranks' threads do; the run's end, or the hub's deadline, ends the wait."""
        try:
            told = str(run.stacks())
        except Exception as problem:  # the run is over, or hasn't begun
            told = str(problem)
        with contextlib.suppress(Exception):  # the JVM is going
            posts.answer(job, told)


def _posts(spark: SparkSession) -> Any:
    """The jar's object that takes snapshots. It fails when it is called, where the driver's JVM hasn't it."""
    from py4j.java_gateway import JavaClass

    # By a package's attributes each part of the name would ask the JVM.
    return JavaClass("dev.phalanx.spark.ui.RunPosts", spark.sparkContext._gateway._gateway_client)
