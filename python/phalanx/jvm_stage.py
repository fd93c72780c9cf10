"""The stage from the JVM: Spark's executors start and watch the ranks themselves; and which stage a run takes.

JVM-1: the jvm stage is taken only where the driver has this package's own version of the jar. JVM-2: which
stage was taken and why is said once a run; a stage that was asked for by name and can't be had is an error, and
nothing has started. JVM-3: no Python worker takes part, and executors need no Phalanx in their Python.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import __version__
from .connect import is_remote
from .stages import SparkStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from . import _native

logger = logging.getLogger("phalanx")

SETTING = "spark.phalanx.stage"

# py4j sends bytes as base64 in one line of text, of which the JVM makes several copies, and a stage's closure is one
# array. Beyond this a payload goes through a file and Spark's broadcast.
DIRECT_BYTES = 1 << 20


class JvmStage(SparkStage):
    """A barrier stage of tasks of the JVM (`dev.phalanx.spark.BarrierRunner`), submitted by py4j."""

    def _run(self, hub: _native.Hub, attempt: int) -> None:
        context = self._spark.sparkContext
        context.addJobTag(self._tag)
        with _for_jvm(context, self._payload) as payload:
            reports = _runner(context).runPython(
                context._jsc.sc(),
                self._job,
                payload,
                hub.address,
                hub.token,
                attempt,
                self._description,
                self._local_gpus,
                context.pythonExec,
                dict(context.environment),
                list(context._python_includes),
            )
        for report in reports:
            hub.node_report(bytes(report))


def uses_jvm(spark: SparkSession, wanted: str, *, dataframe: bool) -> bool:
    """Whether a run takes the jvm stage, else it is the python stage; says which and why.

    `wanted` is `spark.phalanx.stage`: `auto`, `jvm` or `python`.

    Raises `RuntimeError` where the jvm stage is wanted and can't be had: the reason, and what to do.
    """
    if dataframe:
        reason = "a DataFrame's partitions reach the ranks through Spark's Python workers"
    elif wanted == "python":
        reason = f"{SETTING} is python"
    else:
        problem = why_not(spark)
        if problem is None:
            logger.info("Phalanx takes the jvm stage, because the jar is on the driver's class path")
            return True
        if wanted == "jvm":
            raise RuntimeError(f"{SETTING} is jvm, but {problem}")
        reason = problem
    logger.info(f"Phalanx takes the python stage, because {reason}")
    return False


def why_not(spark: SparkSession) -> str | None:
    """Why a session can't have the jvm stage, with what to do; None if it can."""
    if is_remote(spark):
        return "the session is one of Spark Connect, whose clients can't reach the driver's JVM"
    remedy = "start the application with phalanx.spark_conf(), or spark-submit --jars with phalanx.jar_path()"
    runner = _runner(spark.sparkContext)
    if runner is None:
        return f"the jar is not on the driver's class path; {remedy}"
    try:
        version = str(runner.version())
    except Exception as problem:
        return f"the jar on the driver's class path can't be used: {problem}"
    if version != __version__:
        return f"the jar on the driver's class path has version {version} and this package {__version__}; {remedy}"
    return None


def _runner(context: Any) -> Any:
    """The class BarrierRunner of the driver's JVM; None where it hasn't one."""
    from py4j.java_gateway import JavaClass

    found = context._jvm.dev.phalanx.spark.BarrierRunner
    # For a name without a class, py4j takes it for a package.
    return found if isinstance(found, JavaClass) else None


@contextlib.contextmanager
def _for_jvm(context: Any, payload: bytes) -> Iterator[bytes | str]:
    """A payload as py4j's argument: itself, or where it is large the name of a file that holds it."""
    if len(payload) <= DIRECT_BYTES:
        yield payload
        return
    # The file is its owner's only, and in a folder that goes with the application.
    with tempfile.NamedTemporaryFile(prefix="phalanx-payload-", dir=context._temp_dir) as file:
        file.write(payload)
        file.flush()
        yield file.name
