"""`phalanx.predict` by a client of Spark Connect."""

from __future__ import annotations

from typing import Any

import models
import phalanx
import pytest
import torch
from support.programs import eventually, models_here

pytestmark = [pytest.mark.remote, pytest.mark.behaviour]


@pytest.mark.parametrize("size", [1, 2_000_000], ids=["in the plan", "as a file"])
def test_a_client_scores_with_a_model_that_the_server_never_loads(stage: str, spark: Any, size: int) -> None:
    spark.conf.set("spark.phalanx.predict.idleTimeout", "1s")
    net = models.Twice()
    net.register_buffer("more", torch.zeros(size, dtype=torch.float64))
    frame = spark.range(0, 40, 1, 2).selectExpr("id", "cast(id as double) as x")
    for _ in range(2):
        scored = phalanx.predict(frame, net, inputs="x", outputs="y double")
        assert [row.y for row in scored.orderBy("id").collect()] == [2 * row for row in range(40)]
    spark.conf.unset("spark.phalanx.predict.idleTimeout")
    eventually("the process of the model ends", 30, lambda: not models_here())


def test_pysparks_function_of_batches_works_there(stage: str, spark: Any) -> None:
    from pyspark.sql.types import DoubleType

    spark.conf.set("spark.phalanx.predict.idleTimeout", "1s")
    made = phalanx.predict_batch_udf(lambda: lambda x: x + 1, return_type=DoubleType(), batch_size=10)
    frame = spark.range(0, 40, 1, 2).selectExpr("cast(id as double) as x")
    assert sorted(row.y for row in frame.select(made("x").alias("y")).collect()) == list(range(1, 41))
    spark.conf.unset("spark.phalanx.predict.idleTimeout")
    eventually("the process of the model ends", 30, lambda: not models_here())
