"""The stage of Spark's Python workers. It needs no jar, and runs on Spark Connect.

STAGE-4 (no-sql): a driver's stage is one of an RDD. What a first DataFrame takes, in the driver to plan and in the
workers to import pandas and pyarrow, is seconds in a fresh session. A client of Spark Connect has DataFrames only, and
so has a driver where Spark keeps RDDs from Python.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..connect.client import is_remote, shipped
from ..connect.relay import Relay, Unavailable, has_plugin, hub_end, is_preferred
from ..spark.driver_jvm import barrier_runner
from ..spark.jar import PLUGIN
from ..spark.session import application_conf, is_local
from .seats import Seats
from .spark import SparkStage

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

    from ..request.run_request import RunRequest

logger = logging.getLogger("phalanx")

# The property of a Spark job that says whose it is; `dev.phalanx.spark.ui.RunStore` reads it.
_RUN_PROPERTY = "phalanx.run"
# What each seat's job may carry itself; a larger payload is broadcast once for all.
_SEAT_BYTES = 64 << 10
# The job whose nodes are in a Spark job's Python workers; `dev.phalanx.spark.ways.TaskTunnel` reads it.
_TUNNEL_JOB = "phalanx.tunnel.job"


class ClientWay(NamedTuple):
    """How tasks reach a client of Spark Connect."""

    connect: str
    """`auto`, `direct` or `relay`: `spark.phalanx.connect`."""
    bind: str
    """Where the hub binds; empty for what it advertises."""
    node_timeout: float
    """After how many seconds of silence the client is gone."""
    port: int
    """Where the server begins to look for a free port; 0 for any."""


class PythonStage(SparkStage):
    """Tasks in Python workers: one barrier stage, or a job each."""

    def __init__(self, request: RunRequest, *, spark: SparkSession, local_gpus: list[str]) -> None:
        super().__init__(request, spark=spark, local_gpus=local_gpus)
        if request.rows is not None and request.rows.data_set is not None:
            self.what = f"the Spark stage that computes the data set {request.rows.data_set!r}"
        self._way = _client_way(request)
        self._relay: Relay | None = None
        self._gang: Seats | None = None
        if self._job.logs_uri is not None:
            logger.warning(
                "The ranks' logs stay on their hosts: this run's tasks are in Spark's Python workers, which "
                f"can't write to {self._job.logs_uri} (spark.phalanx.logs.directory); use the jvm stage, or a "
                "folder that all hosts share"
            )

    def _run(self, hub: _native.Hub, attempt: int) -> None:
        remote = is_remote(self._spark)
        if not remote:
            context = self._spark.sparkContext
            context.setLocalProperty(_RUN_PROPERTY, self._job.id)
            if context.getLocalProperty("spark.job.description") is None:
                context.setLocalProperty("spark.job.description", self._description)
        relay = self._relayed(hub) if remote else None
        # Where the executors couldn't connect to this client before, they don't try to again.
        is_only_way = relay is not None and (self._way.connect == "relay" or is_preferred(self._spark))
        spec = hub.node_spec(
            attempt,
            python=None,
            env=self._request.variables,
            local_gpus=self._local_gpus,
            by=relay if is_only_way else None,
        )
        with contextlib.ExitStack() as stack:
            tag = stack.enter_context(self._tagged())
            if not remote:
                stack.enter_context(_tunnels(self._spark.sparkContext, self._job.id, hub.address))
            payload = stack.enter_context(self._sent_payload())
            self._tasks(spec, payload, None if is_only_way else relay, tag)

    def carrier_spec(self, hub: _native.Hub, attempt: int) -> bytes:
        by = None if self._relay is None else self._relay.address
        return hub.node_spec(attempt, python=None, env={}, local_gpus=[], by=by)

    @contextlib.contextmanager
    def _sent_payload(self) -> Iterator[Any]:
        """The payload as tasks are handed it."""
        payload = self._request.payload.packed
        if is_remote(self._spark):
            yield shipped(self._spark, payload)
        elif self._seats and len(payload) > _SEAT_BYTES:
            shared = self._spark.sparkContext.broadcast(payload)
            try:
                yield shared
            finally:
                with contextlib.suppress(Exception):  # the session may be gone
                    shared.destroy()
        else:
            yield payload

    def _tasks(self, spec: bytes, payload: Any, relay: str | None, tag: str) -> None:
        """Runs the tasks to their end."""
        rows, tasks = self._request.rows, self._job.tasks
        frame, stream = (None, None) if rows is None else rows
        task = _task(
            spec=spec,
            payload=payload,
            of_dataframe=frame is not None and stream is None,
            stream=None if stream is None else (stream, self._job.ranks // tasks),
            in_executor=not is_local(self._spark),
            relay=relay,
            barrier=not self._seats,
        )
        if frame is None:
            numbers = None if is_remote(self._spark) else _numbers(self._spark.sparkContext, tasks)
            if numbers is not None and self._profile is not None:
                numbers = numbers.withResources(self._profile.spark)
            if numbers is not None and self._seats:
                all_run, cancelled = self._all_run, lambda: self._cancelled
                cancel = functools.partial(self._cancel_jobs, tag)
                self._gang = Seats(
                    self._spark,
                    numbers,
                    tag,
                    least=self._job.least_tasks,
                    given_up=cancelled,
                    cancel=cancel,
                    profile=self._profile,
                )
                self._gang.run(task, all_run)
                return
            if numbers is not None:
                numbers.barrier().mapPartitions(task).collect()
                return
            frame = self._spark.range(0, tasks, 1, tasks)
        # Where tasks can't be jobs, they are one stage of Spark's, which starts executors for them, too.
        # Spark 3.5 doesn't know the last.
        profile = {} if self._profile is None else {"profile": self._profile.spark}
        frame.mapInArrow(task, "nothing int", barrier=not self._seats, **profile).collect()

    def _add_job(self, partition: int) -> None:
        if self._gang is not None:
            self._gang.add(partition)

    def _end_other_jobs(self, partition: int, stage: int) -> None:
        if self._gang is not None:
            self._gang.end_others(partition, stage)

    def _relayed(self, hub: _native.Hub) -> str | None:
        """Where tasks reach this client through the Spark Connect server; None where they don't.

        Raises `RuntimeError` where that is the only way and can't be had.
        """
        if self._way.connect == "direct" or not has_plugin(self._spark):
            return None
        if self._relay is None:
            try:
                end = hub_end(hub.address, self._way.bind, _native.is_own_host)
                self._relay = Relay(self._spark, end, patience=self._way.node_timeout, port=self._way.port)
            except Unavailable as problem:
                if self._way.connect == "relay":
                    raise RuntimeError(f"spark.phalanx.connect is relay, but {problem}") from None
                logger.warning("Executors can only connect to this client directly: %s.", problem)
                return None
        return self._relay.address

    def close(self) -> None:
        """Ends the way through the Spark Connect server, if there is one."""
        if self._relay is not None:
            self._relay.close()


def _client_way(request: RunRequest) -> ClientWay:
    settings = request.settings
    port = int(settings.values.get("spark.phalanx.hub.port", "0"))
    return ClientWay(settings.connect, request.endpoint[0], settings.node_timeout, port)


def _numbers(context: SparkContext, tasks: int) -> RDD[int] | None:
    """A row a task; None where Python may have no RDDs, as on some hosted Sparks."""
    from py4j.protocol import Py4JError

    try:
        return context.parallelize(range(tasks), tasks)
    except Py4JError as problem:
        logger.debug("The python stage goes through a DataFrame: %s", problem)
        return None


@contextlib.contextmanager
def _tunnels(context: SparkContext, job: str, hub: str) -> Iterator[None]:
    """Has executors that have the plugin carry the connections of tasks that can't reach the hub, through Spark."""
    runner: Any = None
    try:
        if PLUGIN in (application_conf(context)("spark.plugins") or ""):
            runner = barrier_runner(context)
        if runner is not None:
            runner.beginTunnels(job, hub)
            context.setLocalProperty(_TUNNEL_JOB, job)
    except Exception as problem:  # a jar of another version
        logger.debug("Tasks can only connect to the hub directly: %s", problem)
        runner = None
    try:
        yield
    finally:
        if runner is not None:
            with contextlib.suppress(Exception):  # the JVM has ended, and with it the tunnels
                runner.endTunnels(job)


def _task(**arguments: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    # A nested function travels by value, so that an executor without Phalanx can still say so.
    def task(rows: Iterable[Any]) -> Iterator[Any]:
        try:
            from phalanx.stages.python_task import run_task
        except ImportError as error:
            import socket
            import sys

            where = f"{sys.executable} on {socket.gethostname()}"
            raise RuntimeError(
                f"Phalanx can't be imported by the executors' Python ({where}): {error}"
            ) from None
        run_task(rows, **arguments)
        return iter(())

    return task
