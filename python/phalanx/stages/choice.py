"""Which stage a run of a session takes: the driver's own node, Spark's Python workers, or its executors' JVMs.

STAGE-1 (same-version): the jvm stage is taken only if the driver has this package's own version of the jar.
STAGE-2 (says-why): each run says once which stage was taken and why. A session that has a jar which can't be used is a
warning. If a stage was asked for by name and can't be had, that is an error, and nothing has started.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from .._native import VERSION
from ..connect.client import is_remote
from ..driver.session import copy_by_hadoop, driver_dir
from . import jvm
from .local import LocalStage
from .python import ClientWay, PythonStage
from .spark_files import drivers_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .. import _native
    from ..settings import Settings
    from .stage import Stage

logger = logging.getLogger("phalanx")

SETTING = "spark.phalanx.stage"


def local_stage(spark: SparkSession, *, payload: bytes, gpus: list[str], variables: dict[str, str]) -> Stage:
    """The stage of `local_mode=True`."""
    return LocalStage(
        payload=payload,
        gpus=gpus,
        variables=variables,
        work_dir=driver_dir(spark),
        env=drivers_files(spark),
        copy_files=functools.partial(copy_by_hadoop, spark),
    )


def spark_stage(
    spark: SparkSession,
    *,
    job: _native.Job,
    payload: bytes,
    settings: Settings,
    gpus: list[str],
    variables: dict[str, str],
    hub_host: str,
    dataframe: DataFrame | None,
    stream: str | None,
) -> Stage:
    """The stage of a run in Spark's tasks, which is said.

    `gpus` are those of the driver for tasks on a local master, `hub_host` where the hub binds, `dataframe` the input
    of the tasks, if it isn't the ranks' alone, and `stream` the name of the data set that its rows are.

    Raises as `uses_jvm`.
    """
    port = int(settings.values.get("spark.phalanx.hub.port", "0"))
    way = ClientWay(settings.connect, hub_host, settings.node_timeout, port)
    in_python = functools.partial(PythonStage, dataframe=dataframe, stream=stream, way=way)
    in_jvm = uses_jvm(spark, settings.stage, dataframe=dataframe is not None)
    stage = jvm.JvmStage if in_jvm else in_python
    return stage(
        spark=spark,
        job=job,
        payload=payload,
        slots_timeout=settings.slots_timeout,
        local_gpus=gpus,
        variables=variables,
    )


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
