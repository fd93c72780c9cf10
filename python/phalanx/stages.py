"""Where a run's nodes live: a thread of the driver (local mode), or the tasks of a Spark barrier stage.

STAGE-1: a stage tells the hub when it is over, once for each time that it was started. STAGE-2: the caller's Spark
properties (job group, scheduler pool) hold for the stage, and nothing that the stage sets is left behind in the
caller's.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import checks, connect, spark_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from . import _native

logger = logging.getLogger("phalanx")

# How long Spark may take to hear of a cancel, and a stage to end then.
_CANCEL_S = 3.0
_STAGE_END_S = 30.0

# Runs an entry of ours with this package at the end of the path: the rank finds it wherever the supervisor did
# (--py-files, --archives, an editable install), and no module of the user's is shadowed.
_ENTRY = "import sys; sys.path[:] = [p for p in sys.path if p] + [{parent!r}]; from phalanx.{name} import main; main()"


# Classes of Spark's and ours around what they say, from the JVM and from Spark Connect.
_WRAPPING = re.compile(
    r"^(?:(?:dev\.phalanx\.spark\.TrainingException|org\.apache\.spark\.Spark\w*Exception): |\([\w.$]+\) )+"
)


def rank_program() -> list[str]:
    """The command line of a rank."""
    return _entry("rank")


def pool_program() -> list[str]:
    """The command line of a warm pool for such ranks."""
    return _entry("pool")


def _entry(module: str) -> list[str]:
    parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [sys.executable, "-c", _ENTRY.format(parent=parent, name=module)]


def guard_path() -> str:
    """The guard program that comes with the package."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "phalanx-guard")


def hub_endpoint(spark: SparkSession) -> tuple[str, str]:
    """Where the hub binds and what tasks are told, by Spark's own rules for its driver: (bind, advertise)."""
    if connect.is_remote(spark):
        return connect.endpoint(spark)
    advertise = spark.conf.get("spark.driver.host", None) or socket.gethostname()
    bind = spark.conf.get("spark.driver.bindAddress", None) or ""
    return bind, advertise


def host_of(address: str) -> str:
    """The host of Spark's `host:port`, which may be an IPv6 address in brackets or without any."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
        host = address
    return host.strip("[]")


class Stage:
    """A thread that hosts or submits the nodes of a run."""

    what = "the Spark stage"

    def __init__(self) -> None:
        self.error: BaseException | None = None
        """What ended the stage, where it did not end well."""
        self._cancelled = False
        self._attempt = 0
        self._thread: threading.Thread | None = None
        # Made in the caller's thread, whose Spark properties it is to have; the run may be driven by another.
        self._target = self._inheriting(self._main)

    def start(self, hub: _native.Hub, attempt: int = 0) -> None:
        """Begins; returns at once. A later attempt first ends what is left of the one before."""
        before, self._attempt = self._thread, attempt
        self._thread = threading.Thread(
            target=self._target, args=(hub, attempt, before), name="phalanx-stage", daemon=True
        )
        self._thread.start()

    def _inheriting(self, target: Callable[..., None]) -> Callable[..., None]:
        """`target`, with what a thread of the stage has from the caller's."""
        return target

    def _main(self, hub: _native.Hub, attempt: int, before: threading.Thread | None) -> None:
        problem: str | None = None
        cancelled = False
        try:
            if before is not None:
                self._make_room()
                before.join(_STAGE_END_S)
                if before.is_alive():
                    raise RuntimeError("the stage of the attempt before has not ended")
            if not self._cancelled:
                self._run(hub, attempt)
        except BaseException as error:
            cancelled = is_cancellation(error)
            if not self._cancelled and attempt == self._attempt:
                self.error = error
                said = explain(error)
                problem = said if cancelled else f"{self.what} failed: {said}"
        try:
            if problem is not None and cancelled:
                hub.stop(problem)
                problem = None
            hub.stage_ended(attempt, problem)
        except RuntimeError as error:  # the run is over and the hub closed
            logger.debug("%s", error)

    def _run(self, hub: _native.Hub, attempt: int) -> None:
        """Runs all nodes to their end; they begin with `attempt`."""
        raise NotImplementedError

    def _make_room(self) -> None:
        """Before a later attempt: ends what is left of the one before, and waits until another can run."""

    def cancel(self) -> None:
        """Ends the stage from outside, where that is possible; how it ends is then no news."""
        self._cancelled = True

    def join(self, timeout: float) -> bool:
        """Waits for the end; False if it has not come."""
        assert self._thread is not None
        self._thread.join(timeout)
        return not self._thread.is_alive()


class LocalStage(Stage):
    """`local_mode=True`: all ranks on the driver's host, the supervisor in this process."""

    what = "the driver's own node"

    def __init__(self, *, spark: SparkSession, job: bytes, payload: bytes, gpus: list[str]) -> None:
        super().__init__()
        self._arguments = (job, payload)
        self._gpus = gpus
        self._work_dir = driver_dir(spark)
        self._env = _drivers_files(spark)

    def _run(self, hub: _native.Hub, attempt: int) -> None:
        from . import _native

        _native.run_node(
            *self._arguments,
            hub=hub.address,
            token=hub.token,
            partition=0,
            attempt=attempt,
            host=socket.gethostname(),
            gpus=self._gpus,
            program=rank_program(),
            pool=pool_program(),
            shares_pool=False,
            env=self._env,
            work_dir=self._work_dir,
            guard=guard_path(),
            all_gather=None,
        )


class SparkStage(Stage):
    """A stage that is a Spark job, with the caller's Spark properties and a tag of its own to cancel it by."""

    def __init__(
        self,
        *,
        spark: SparkSession,
        job: bytes,
        payload: bytes,
        name: str,
        num_tasks: int,
        num_ranks: int,
        slots_timeout: float,
        local_gpus: list[str],
    ) -> None:
        self._spark = spark
        super().__init__()
        self._job = job
        self._payload = payload
        self._num_tasks = num_tasks
        self._slots_timeout = slots_timeout
        self._local_gpus = local_gpus
        self._description = f"Phalanx: {name}, {num_ranks} ranks"
        self._tag = _new_tag()
        self._deaf = False

    def _inheriting(self, target: Callable[..., None]) -> Callable[..., None]:
        # Carries the caller's local properties (job group, pool) to a thread, and none back.
        from pyspark import inheritable_thread_target

        inheriting: Callable[..., None] = inheritable_thread_target(self._spark)(target)
        return inheriting

    def _make_room(self) -> None:
        self._cancel_jobs()
        self._tag = _new_tag()
        # Spark itself would look only every 15 s whether the lost executor has been replaced.
        checks.wait_for_slots(self._spark, self._num_tasks, self._slots_timeout, lambda: self._cancelled)

    def cancel(self) -> None:
        """Cancels the stage's Spark job; safe when it is over. Blocks for `_CANCEL_S` at most."""
        super().cancel()
        self._cancel_jobs()

    def _cancel_jobs(self) -> None:
        if not connect.is_remote(self._spark):
            self._cancel_by(functools.partial(self._spark.sparkContext.cancelJobsWithTag, self._tag))
        elif not self._deaf:
            # A client tries for ten minutes to reach a server that has gone.
            interrupt = functools.partial(
                self._cancel_by, functools.partial(self._spark.interruptTag, self._tag)
            )
            telling = threading.Thread(target=interrupt, name="phalanx-cancel", daemon=True)
            telling.start()
            telling.join(_CANCEL_S)
            self._deaf = telling.is_alive()

    def _cancel_by(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # the session may be gone, and with it the job
            logger.debug("The Spark job can't be cancelled: %s", error)

    def join(self, timeout: float) -> bool:
        """As `Stage.join`; doesn't wait for a Spark that could not be told to cancel."""
        return super().join(0 if self._deaf else timeout)


def _new_tag() -> str:
    return f"phalanx-{os.urandom(8).hex()}"


class PythonStage(SparkStage):
    """A barrier stage of Python workers (`mapInArrow`): needs no jar, and runs on Spark Connect."""

    def __init__(self, *, use_gpu: bool, dataframe: DataFrame | None, **common: Any) -> None:
        super().__init__(**common)
        self._use_gpu = use_gpu
        self._dataframe = dataframe

    def _run(self, hub: _native.Hub, attempt: int) -> None:
        remote = connect.is_remote(self._spark)
        if remote:
            self._spark.addTag(self._tag)
        else:
            context = self._spark.sparkContext
            context.addJobTag(self._tag)
            if context.getLocalProperty("spark.job.description") is None:
                context.setLocalProperty("spark.job.description", self._description)
        schema = None
        frame = self._dataframe
        if frame is None:
            frame = self._spark.range(0, self._num_tasks, 1, self._num_tasks)
        else:
            schema = frame.schema.json()
        task = _task(
            job=self._job,
            payload=connect.shipped(self._spark, self._payload) if remote else self._payload,
            hub=hub.address,
            token=hub.token,
            attempt=attempt,
            use_gpu=self._use_gpu,
            local_gpus=self._local_gpus,
            schema=schema,
        )
        for row in frame.mapInArrow(task, "report binary", barrier=True).collect():
            hub.node_report(bytes(row.report))


def _task(**arguments: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # A nested function travels by value, so that an executor without Phalanx can still say so.
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            from phalanx.stages import run_task
        except ImportError as error:
            import socket
            import sys

            where = f"{sys.executable} on {socket.gethostname()}"
            raise RuntimeError(
                f"Phalanx can't be imported by the executors' Python ({where}): {error}"
            ) from None
        yield from run_task(batches, **arguments)

    return task


def run_task(
    batches: Iterator[pa.RecordBatch],
    *,
    job: bytes,
    payload: bytes | str,
    hub: str,
    token: bytes,
    attempt: int,
    use_gpu: bool,
    local_gpus: list[str],
    schema: str | None,
) -> Iterator[pa.RecordBatch]:
    """The node of one barrier task; yields a report if the hub could not be told.

    `payload` is a name where it came as a file of Spark's.
    """
    import json

    from pyspark import BarrierTaskContext

    from . import _native

    if isinstance(payload, str):
        from pyspark import SparkFiles

        with open(SparkFiles.get(payload), "rb") as file:
            payload = file.read()
    context = BarrierTaskContext.get()
    partition = context.partitionId()
    addresses = [info.address for info in context.getTaskInfos()]
    tasks: int = json.loads(job)["tasks"]
    if len(addresses) != tasks:
        raise RuntimeError(
            f"the DataFrame has {len(addresses)} partitions and the run {tasks} tasks; repartition it to {tasks}"
        )
    gpus: list[str] = []
    if use_gpu:
        per_task = json.loads(job)["ranks"] // tasks
        # A local master gives tasks no addresses: they share out the driver's.
        gpus = local_gpus[partition * per_task : (partition + 1) * per_task]
        if not gpus:
            from .gpus import VISIBLE, devices

            gpus = devices(context.resources()["gpu"].addresses, os.environ.get(VISIBLE))
    work_dir = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    with contextlib.ExitStack() as stack:
        env = _workers_files()
        if schema is not None:
            from .dataframe import partition_files

            env |= stack.enter_context(partition_files(batches, schema, work_dir))
        # Spark takes a worker whose input was left unread for broken, and the next task waits for another: seconds.
        for _ in batches:
            pass
        report = _native.run_node(
            job,
            payload,
            hub=hub,
            token=token,
            partition=partition,
            attempt=attempt,
            host=host_of(addresses[partition]),
            gpus=gpus,
            program=rank_program(),
            pool=pool_program(),
            # Spark ends a worker after a minute without a task; what starts the next one stays.
            shares_pool=True,
            env=env,
            work_dir=work_dir,
            guard=guard_path(),
            all_gather=context.allGather,
        )
    if report:
        import pyarrow as pa

        yield pa.RecordBatch.from_arrays([pa.array([report], pa.binary())], ["report"])


def _workers_files() -> dict[str, str]:
    """What ranks are told of Spark's files, in a Python worker: it has them on its own path."""
    try:
        from pyspark import SparkFiles

        root = SparkFiles._root_directory if SparkFiles._is_running_on_worker else None
    except ImportError:  # pyspark-client, which has no files
        root = None
    return spark_files.environment(root, spark_files.py_files_on(sys.path, root) if root else ())


def _drivers_files(spark: SparkSession) -> dict[str, str]:
    """The same in the driver; a client of Spark Connect has no files of Spark's."""
    try:
        context = spark.sparkContext
        from pyspark import SparkFiles

        return spark_files.environment(SparkFiles.getRootDirectory(), context._python_includes)
    except Exception as error:  # Spark Connect says in several ways that it has no SparkContext
        logger.debug("No files of Spark for local ranks: %s", error)
        return {}


def is_cancellation(error: BaseException) -> bool:
    """Whether somebody cancelled the Spark job: its group, its tag, its stage, or all jobs."""
    # The names of Spark's error conditions, which its messages carry in brackets; the second is Spark Connect's.
    text = str(getattr(error, "java_exception", error))
    return "[SPARK_JOB_CANCELLED]" in text or "[OPERATION_CANCELED]" in text


def explain(error: BaseException) -> str:
    """A Spark or other error in a sentence or two: the last line of a worker's traceback, else the first line."""
    # py4j's own text is about the call; what Spark said is in the Java exception.
    text = str(getattr(error, "java_exception", error)).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if type(error).__name__ in ("Py4JNetworkError", "Py4JError"):
        if len(lines) > 1:  # py4j's trace of a call that the JVM refused
            return f"the driver's JVM refused the call: {lines[1]}"
        return f"the driver's JVM did not answer ({lines[0]}); has it ended, or run out of memory?"
    if "Traceback (most recent call last):" in text:
        # Spark puts the JVM's frames behind the worker's traceback; the exception's own line begins at the margin.
        at_margin = [
            line
            for line in text[text.rindex("Traceback (most recent call last):") :].splitlines()[1:]
            if line[:1].isalpha() and ":" in line
        ]
        if at_margin:
            return at_margin[0]
    if "RPC that terminated with" in lines[0]:
        details = re.search(r'details = "(.+)"', text)
        return f"the Spark Connect server did not answer: {details[1] if details else lines[-1]}"
    said = _WRAPPING.sub("", lines[0])
    # Of a barrier stage Spark's first line only says that a task failed; the next one says why.
    if len(lines) > 1 and said.endswith("finished unsuccessfully."):
        said = lines[1]
    return said if len(said) < 500 else f"{said[:500]}..."


def driver_dir(spark: SparkSession) -> str:
    """Where the driver's own ranks keep their files: Spark's temporary directory, which ends with the application;
    for a client of Spark Connect a folder that ends with the client."""
    return connect.directory() if connect.is_remote(spark) else str(spark.sparkContext._temp_dir)
