"""`phalanx.predict` in a session that nobody prepared for Phalanx."""

from __future__ import annotations

import phalanx
import pytest
from support.own_session import in_session
from support.tiers import whole

pytestmark = pytest.mark.timeout(120)


@whole("an application of its own")
def test_a_worker_brings_a_model_more_than_once_where_spark_encrypts_its_files() -> None:
    answer = in_session(
        "local[1]",
        """
        import phalanx, torch
        frame = spark.range(0, 40, 1, 4).selectExpr("double(id) as x")
        net = torch.nn.Hardtanh(-1.0, 30.0)
        scored = phalanx.predict(frame, net, inputs="x", outputs="y double", processes_per_device=4)
        answer = [row.y for row in scored.collect()]
        """,
        conf={**phalanx.spark_conf(), "spark.io.encryption.enabled": "true"},
    )
    assert answer == [min(float(row), 30.0) for row in range(40)]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param("auto", id="by default"),
        pytest.param("jvm", id="where the jvm stage is asked for"),
    ],
)
@whole("an application of its own")
def test_models_are_asked_from_python_workers(asked: str) -> None:
    answer = in_session(
        "local[2]",
        f"""
        import phalanx, torch
        spark.conf.set("spark.phalanx.stage", {asked!r})
        net = torch.nn.Hardtanh(-1.0, 30.0)
        frame = spark.range(0, 40, 1, 2).selectExpr("double(id) as x")
        scored = phalanx.predict(frame, net, inputs="x", outputs="y double")
        answer = [row.y for row in scored.collect()]
        """,
    )
    assert answer == [min(float(row), 30.0) for row in range(40)], "SCORE-21"
