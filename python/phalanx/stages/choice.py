"""Which stage a run of a session takes: the driver's own node, Spark's Python workers, or its executors' JVMs.

STAGE-1 (same-version): the jvm stage is taken only if the driver has this package's own version of the jar.
STAGE-2 (says-why): each run says once which stage was taken and why. A session that has a jar which can't be used is a
warning. If a stage was asked for by name and can't be had, that is an error, and nothing has started.
STAGE-8 (idle-limit-said): where Spark would end a longer training because its Python workers are silent, a warning says
so before it starts.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from ..connect.client import is_remote
from ..spark.driver_jvm import SETTING, barrier_runner, why_not
from ..spark.session import copy_by_hadoop
from . import jvm
from .idle_workers import idle_limit
from .local import LocalStage
from .python import PythonStage
from .spark_files import drivers_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..request.run_request import RunRequest
    from .stage import Stage

logger = logging.getLogger("phalanx")


def local_stage(spark: SparkSession, request: RunRequest, *, gpus: list[str]) -> Stage:
    """The stage of `local_mode=True`."""
    return LocalStage(
        request, gpus=gpus, env=drivers_files(spark), copy_files=functools.partial(copy_by_hadoop, spark)
    )


def spark_stage(spark: SparkSession, request: RunRequest, *, gpus: list[str]) -> Stage:
    """The stage of a run in Spark's tasks, which is said. `gpus` are those of the driver for tasks on a local master.

    Raises as `uses_jvm`.
    """
    of_dataframe = request.rows is not None
    in_jvm = uses_jvm(spark, request.settings.stage, dataframe=of_dataframe)
    if not in_jvm:
        _warn_of_idle_limit(spark, of_dataframe=is_remote(spark) or of_dataframe)
    stage = jvm.JvmStage if in_jvm else PythonStage
    return stage(request, spark=spark, local_gpus=gpus)


def _warn_of_idle_limit(spark: SparkSession, *, of_dataframe: bool) -> None:
    if limit := idle_limit(lambda key: spark.conf.get(key, None), of_dataframe=of_dataframe):
        logger.warning(" ".join(limit))


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
        if not is_remote(spark) and barrier_runner(spark.sparkContext) is not None:
            level = logging.WARNING  # who gave the session a jar expects that it is used
    logger.log(level, f"Phalanx takes the python stage, because {reason}")
    return False
