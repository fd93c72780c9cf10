"""What the driver's JVM has of Phalanx: its jar, if it is one that this package can use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._native import VERSION
from ..connect.client import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.phalanx.stage"


def barrier_runner(context: Any) -> Any:
    """The class BarrierRunner of the driver's JVM; None where it hasn't one."""
    from py4j.java_gateway import JavaClass

    found = context._jvm.dev.phalanx.spark.BarrierRunner
    # For a name without a class, py4j takes it for a package.
    return found if isinstance(found, JavaClass) else None


def own_runner(context: Any) -> Any:
    """The same if it is that of this package's own version, which alone has all that this package asks for."""
    runner = barrier_runner(context)
    try:
        return runner if runner is not None and str(runner.version()) == VERSION else None
    except Exception:  # whatever a jar of another version does
        return None


def why_not(spark: SparkSession) -> str | None:
    """Why a session can't have the jvm stage, with what to do; None if it can."""
    if is_remote(spark):
        return "the session is a Spark Connect client, which can't reach the driver's JVM"
    remedy = (
        "build the session with phalanx.configure(SparkSession.builder), "
        "or give spark-submit --jars the path of phalanx.jar_path()"
    )
    runner = barrier_runner(spark.sparkContext)
    if runner is None:
        return f"the jar is not on the driver's class path; {remedy}"
    try:
        version = str(runner.version())
        if version != VERSION:
            return f"the jar on the driver's class path has version {version}, but this package has {VERSION}; {remedy}"
        problem = runner.problem()
    except Exception as error:
        return f"the jar on the driver's class path can't be used: {error}"
    return None if problem is None else f"the jar on the driver's class path can't be used: {problem}"
