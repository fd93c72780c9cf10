"""`phalanx.predict` in a session that nobody prepared for Phalanx."""

from __future__ import annotations

import pytest
from support.own_session import in_session
from support.tiers import whole

pytestmark = pytest.mark.timeout(120)


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
