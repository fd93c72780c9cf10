"""Which columns a model may be given, and as what."""

from __future__ import annotations

from typing import Any

import phalanx
import pytest
import torch
from support.tiers import whole

pytestmark = pytest.mark.usefixtures("no_model_is_left")


def test_times_and_decimals_are_the_numbers_that_training_has(
    session: Any, request: pytest.FixtureRequest
) -> None:
    columns = {
        "day": ("date_add(date'1970-01-01', int(id))", 1, torch.int32),
        "clock": ("make_time(0, 0, cast(id as decimal(8,6)))", 1_000_000_000, torch.int64),
        "at": ("timestamp_micros(id)", 1, torch.int64),
        "ntz": ("cast(timestamp_micros(id) as timestamp_ntz)", 1, torch.int64),
        "span": ("make_dt_interval(0, 0, 0, id)", 1_000_000, torch.int64),
        "price": ("cast(id as decimal(12,3))", 1, torch.float64),
    }
    kinds = {name: kind for name, (_, _, kind) in columns.items()}

    def make() -> Any:
        def model(batch: dict[str, Any]) -> Any:
            assert {name: values.dtype for name, values in batch.items()} == kinds
            return {f"n_{name}": values.long() for name, values in batch.items()}

        return model

    session.conf.set("spark.sql.timeType.enabled", "true")
    request.addfinalizer(lambda: session.conf.unset("spark.sql.timeType.enabled"))
    frame = session.range(0, 50, 1, 2).selectExpr(
        "id", *(f"{text} as {name}" for name, (text, _, _) in columns.items())
    )
    made = ", ".join(f"n_{name} long" for name in columns)
    for row in phalanx.predict(frame, make, inputs=list(columns), outputs=made).collect():
        for name, (_, each, _) in columns.items():
            assert row[f"n_{name}"] == row.id * each, f"SCORE-13: {name}"


@whole("another type")
def test_a_users_own_type_is_what_spark_stores_it_as(session: Any) -> None:
    from pyspark.testing.objects import PythonOnlyPoint

    frame = session.createDataFrame([(PythonOnlyPoint(float(row), 2.0),) for row in range(5)], ["point"])
    scored = phalanx.predict(frame, lambda: lambda x: x.prod(1), inputs="point", outputs="y double")
    assert [row.y for row in scored.select("y").collect()] == [2.0 * row for row in range(5)], "SCORE-13"
