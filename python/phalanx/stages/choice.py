"""Which stage a run takes: that of Spark's Python workers, or that of its executors' JVMs.

JVM-1 (same-version): the jvm stage is taken only if the driver has this package's own version of the jar.
JVM-2 (says-why): each run says once which stage was taken and why. A session that has a jar which can't be used is a
warning. If a stage was asked for by name and can't be had, that is an error, and nothing has started.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .._native import VERSION
from ..driver.connect import is_remote
from . import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")

SETTING = "spark.phalanx.stage"


def uses_jvm(spark: SparkSession, wanted: str, *, dataframe: bool) -> bool:
    """Whether a run takes the jvm stage, else it is the python stage; says which and why.

    `wanted` is `spark.phalanx.stage`: `auto`, `jvm` or `python`.

    Raises `RuntimeError` where the jvm stage is wanted and can't be had: the reason, and what to do.
    """
    level = logging.INFO
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
        if not is_remote(spark) and jvm.barrier_runner(spark.sparkContext) is not None:
            level = logging.WARNING  # who gave the session a jar expects that it is used
    logger.log(level, f"Phalanx takes the python stage, because {reason}")
    return False


def why_not(spark: SparkSession) -> str | None:
    """Why a session can't have the jvm stage, with what to do; None if it can."""
    if is_remote(spark):
        return "the session is one of Spark Connect, whose clients can't reach the driver's JVM"
    remedy = "build it by phalanx.configure(SparkSession.builder), or spark-submit --jars phalanx.jar_path()"
    runner = jvm.barrier_runner(spark.sparkContext)
    if runner is None:
        return f"the jar is not on the driver's class path; {remedy}"
    try:
        version = str(runner.version())
        if version != VERSION:
            return f"the jar on the driver's class path has version {version} and this package {VERSION}; {remedy}"
        problem = runner.problem()
    except Exception as error:
        return f"the jar on the driver's class path can't be used: {error}"
    return None if problem is None else f"the jar on the driver's class path can't be used: {problem}"
