"""The doctor's stage: a task of Spark's where a job would have one, each of which looks at its host.

DOCTOR-9 (no-package): it takes what a job takes, a barrier stage of Python workers, and brings its own code along. So
executors without Phalanx, torch or pyarrow are looked at like the others.
DOCTOR-10 (ends): it is over in time; what is left of it then is cancelled, and what has come until then counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..connect.client import is_remote
from ..plumbing.by_value import by_value
from ..spark.session import SessionConf, hub_endpoint
from ..spark.versions import inheriting
from ..stages.spark_errors import explain
from .executors import executors, running_tasks
from .links import Listener
from .task import Orders, examined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_BYTES = 8 << 20
# If by then no task of it runs, something else is to be tried.
_START_SHARE = 0.4
# How long Spark may take to count a task that has failed.
_COUNTED_S = 2.0
_FAILED_ON = re.compile(r"\(TID \d+\) \(([^ ()]+) executor")


@dataclass
class Seen:
    """What came back from the stage."""

    tasks: int
    barrier: bool = True
    """Whether its tasks were to run at the same time."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    """What each task found that could say it, in the order of partitions."""
    problem: str | None = None
    """Why the stage failed."""
    problem_hosts: list[str] = field(default_factory=list)
    """Where tasks of it failed, as far as Spark tells."""
    late: bool = False
    """Whether it was cancelled because its time was over."""
    started: bool = True
    """Whether tasks of it ever ran, as far as Spark tells; if not it was cancelled early."""
    seconds: float = 0.0
    """How much time it had."""
    waited: float = 0.0
    """How long it really took."""


def look_at_hosts(
    spark: SparkSession,
    tasks: int,
    seconds: float,
    *,
    barrier: bool,
    ports: tuple[int, int],
    use_gpu: bool,
    notice_command: str = "",
) -> Seen:
    """Runs the stage. `ports` are the first ones of the job's hub and of its store, 0 for any."""
    bind, advertise = hub_endpoint(spark, SessionConf(spark).get)
    reports: dict[int, dict[str, Any]] = {}
    secret = os.urandom(32)
    seen = Seen(tasks, barrier=barrier, seconds=seconds)

    def take(facts: dict[str, Any]) -> None:
        reports[int(facts["partition"])] = facts

    with Listener(
        bind or _address_of(advertise),
        secret,
        -1,
        wanted=ports[0],
        take=take,
        most_bytes=_MOST_BYTES,
        until=time.monotonic() + seconds,
    ) as listener:
        orders = Orders(
            secret=secret,
            driver=advertise,
            port=listener.port,
            store_port=ports[1],
            seconds=seconds,
            use_gpu=use_gpu,
            notice_command=notice_command,
            barrier=barrier,
        )
        before = {one.number: one.failed_tasks for one in executors(spark)}
        job = _Job(spark, orders, tasks)
        began = time.monotonic()
        job.start()
        try:
            in_time = job.wait(seconds * _START_SHARE)
            seen.started = in_time or bool(reports) or job.running() != 0
            if not in_time and seen.started:
                in_time = job.wait(seconds * (1 - _START_SHARE))
        except BaseException:
            job.cancel()
            raise
        seen.waited = time.monotonic() - began
        if not in_time:
            seen.late = True
            job.cancel()
        elif job.error is not None:
            _, seen.problem = explain(job.error)
            seen.problem_hosts = _where(spark, job.error, before)
        reports.update({int(facts["partition"]): facts for facts in job.answers})
    seen.facts = [reports[partition] for partition in sorted(reports)]
    return seen


def _where(spark: SparkSession, error: BaseException, before: dict[str, int]) -> list[str]:
    """On which hosts tasks have failed. Of a task of a barrier stage Spark's own words don't say it."""
    found = _FAILED_ON.search(str(getattr(error, "java_exception", error)))
    if found:
        return [found[1]]
    until = time.monotonic() + _COUNTED_S
    while time.monotonic() < until:
        failed = {one.host for one in executors(spark) if one.failed_tasks > before.get(one.number, 0)}
        if failed:
            return sorted(failed)
        time.sleep(0.1)
    return []


class _Job:
    """The Spark job, in a thread of its own with the caller's properties, under a tag to cancel it by."""

    def __init__(self, spark: Any, orders: Orders, tasks: int) -> None:
        self._spark = spark
        self._orders = orders
        self._tasks = tasks
        self._tag = f"phalanx-{os.urandom(8).hex()}"
        self.answers: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=inheriting(spark, self._main), name="phalanx-doctor", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        return self._over.wait(seconds)

    def running(self) -> int | None:
        return running_tasks(self._spark, self._tag)

    def cancel(self) -> None:
        with contextlib.suppress(Exception):  # the session may be gone, and with it the job
            if is_remote(self._spark):
                self._spark.interruptTag(self._tag)
            else:
                self._spark.sparkContext.cancelJobsWithTag(self._tag)
        self._over.wait(5)

    def _main(self) -> None:
        try:
            with room_by_value():
                texts = self._connect() if is_remote(self._spark) else self._classic()
            self.answers = [dict(json.loads(text)) for text in texts]
        except BaseException as error:
            self.error = error
        finally:
            self._over.set()

    def _classic(self) -> list[str]:
        # Not a DataFrame's stage: that would need pyarrow before it could say that it isn't there.
        context = self._spark.sparkContext
        context.addJobTag(self._tag)
        if context.getLocalProperty("spark.job.description") is None:
            context.setLocalProperty("spark.job.description", "Phalanx: doctor")
        orders = self._orders
        rows = context.parallelize(range(self._tasks), self._tasks)
        stage = rows.barrier() if orders.barrier else rows
        return list(stage.mapPartitions(lambda _: iter([examined(orders)])).collect())

    def _connect(self) -> list[str]:
        self._spark.addTag(self._tag)
        orders = self._orders

        def task(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow

            for _ in batches:
                pass
            yield pyarrow.RecordBatch.from_arrays([pyarrow.array([examined(orders)])], ["facts"])

        frame = self._spark.range(0, self._tasks, 1, self._tasks)
        return [row.facts for row in frame.mapInArrow(task, "facts string", barrier=orders.barrier).collect()]


def room_by_value() -> contextlib.AbstractContextManager[None]:
    """As long as this lasts Spark sends this room's functions themselves, and not their names."""
    return by_value(sys.modules[__name__.rpartition(".")[0]])


def _address_of(host: str) -> str:
    """Where the job's hub would listen: at what the driver's name leads to, else everywhere."""
    with contextlib.suppress(OSError):
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    return "0.0.0.0"
