"""Spark's limit on silent Python workers is known before it ends a training."""

from __future__ import annotations

from typing import Any

import pytest
from phalanx.stages.idle_workers import idle_limit

RDD, FRAME = "spark.python.worker", "spark.sql.execution.pyspark.udf"


@pytest.mark.parametrize(
    ("of_dataframe", "conf", "key"),
    [
        (False, {}, None),
        (False, {f"{RDD}.killOnIdleTimeout": "true"}, None),
        (False, {f"{RDD}.killOnIdleTimeout": "true", f"{RDD}.idleTimeoutSeconds": "0s"}, None),
        (False, {f"{RDD}.killOnIdleTimeout": "false", f"{RDD}.idleTimeoutSeconds": "60"}, None),
        (False, {f"{RDD}.killOnIdleTimeout": "true", f"{RDD}.idleTimeoutSeconds": "60"}, RDD),
        (False, {f"{RDD}.killOnIdleTimeout": " TRUE", f"{RDD}.idleTimeoutSeconds": "5min"}, RDD),
        (False, {f"{FRAME}.killOnIdleTimeout": "true", f"{FRAME}.idleTimeoutSeconds": "60"}, None),
        (True, {f"{FRAME}.killOnIdleTimeout": "true", f"{FRAME}.idleTimeoutSeconds": "60"}, FRAME),
        (True, {f"{RDD}.killOnIdleTimeout": "true", f"{RDD}.idleTimeoutSeconds": "60"}, RDD),
        (True, {f"{FRAME}.killOnIdleTimeout": "true", f"{RDD}.idleTimeoutSeconds": "60"}, FRAME),
        (
            True,
            {
                f"{FRAME}.killOnIdleTimeout": "false",
                f"{RDD}.killOnIdleTimeout": "true",
                f"{RDD}.idleTimeoutSeconds": "9",
            },
            None,
        ),
    ],
)
def test_a_limit_on_silent_workers_is_named_where_it_ends_a_training(
    of_dataframe: bool, conf: dict[str, str], key: str | None
) -> None:
    asked: Any = idle_limit(conf.get, of_dataframe=of_dataframe)
    if key is None:
        assert asked is None, "STAGE-8"
    else:
        means, do = asked
        timeout = next(f"{name}={value}" for name, value in conf.items() if "idleTimeout" in name)
        assert timeout in means, "STAGE-8"
        assert do.startswith(f"Set {key}.killOnIdleTimeout to false"), "STAGE-8"
