"""Spark's limit on how long a Python worker may be silent (`spark.python.worker.killOnIdleTimeout`, from Spark 4.1 on).

A worker that runs ranks sends Spark nothing before its task is over, so such a limit ends every longer training of the
python stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Tasks of an RDD have the application's own settings, those of a DataFrame the session's, which fall back on them.
_OF_RDDS = "spark.python.worker."
_OF_DATAFRAMES = "spark.sql.execution.pyspark.udf."


def idle_limit(conf: Callable[[str], str | None], *, of_dataframe: bool) -> tuple[str, str] | None:
    """What ends a longer training of the python stage, and what to do; None where nothing does.

    `conf` gives a setting of the session; `of_dataframe` says that the stage is one of a DataFrame.
    """
    prefixes = (_OF_DATAFRAMES, _OF_RDDS) if of_dataframe else (_OF_RDDS,)

    def found(name: str) -> tuple[str, str]:
        values = ((prefix + name, conf(prefix + name)) for prefix in prefixes)
        return next(((key, value.strip()) for key, value in values if value), ("", ""))

    key, kills = found("killOnIdleTimeout")
    if kills.lower() != "true":
        return None
    timeout_key, timeout = found("idleTimeoutSeconds")
    if not re.match(r"0*[1-9]", timeout):
        return None
    return (
        f"Spark ends a task of the python stage that takes longer than {timeout_key}={timeout}, and with it the "
        f"training: {key} is true, and Python workers that run ranks send Spark nothing before their end.",
        f"Set {key} to false when the application starts, or take the jvm stage.",
    )
