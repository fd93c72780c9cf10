"""Tells the JVM's SparkContext how a run stands, for the tab of Spark's UI and for the event log.

UI-1 (never-disturbs): telling is a thread of its own, at most once a second. It never fails a run, and a run waits for
it only at its end, for the last state, and not for long. Over Spark Connect and without the jar nothing is told.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .connect import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")

RUN_PROPERTY = "phalanx.run"
"""The property of a Spark job that says whose it is; `RunStore` reads it."""

_INTERVAL_S = 1.0
# How long the end of a run waits for its last state to be told.
_LAST_S = 2.0


class SparkUi:
    """Tells Spark's UI the snapshots of a run, from `start` to `stop`."""

    def __init__(self, spark: SparkSession, snapshot: Callable[[], dict[str, Any]]) -> None:
        self._spark = spark
        self._snapshot = snapshot
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins, where there is a JVM to tell."""
        with contextlib.suppress(Exception):
            if not is_remote(self._spark):
                self._thread = threading.Thread(target=self._tell, name="phalanx-ui", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Tells the last state."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LAST_S)

    def _tell(self) -> None:
        try:
            posts = _posts(self._spark)
            while posts is not None:
                is_last = self._over.is_set()
                posts.tell(json.dumps(self._snapshot()))
                if is_last:
                    return
                self._over.wait(_INTERVAL_S)
        except Exception as error:  # the JVM is going, or the session is another thing
            logger.debug("Spark's UI can't be told of a run: %s", error)


def _posts(spark: SparkSession) -> Any:
    """The jar's object that takes snapshots; None where the driver's JVM hasn't it."""
    from py4j.java_gateway import JavaClass

    jvm = spark.sparkContext._jvm
    found = None if jvm is None else jvm.dev.phalanx.spark.ui.RunPosts
    # For a name without a class, py4j takes it for a package.
    return found if isinstance(found, JavaClass) else None
