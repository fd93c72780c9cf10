"""What a model returned as Arrow's arrays: a value stays what it is, or is refused."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from phalanx.scoring.arrow_outputs import WrongOutput, as_arrow

_TIME = pa.timestamp("us", "UTC")


def arrow(values: Any, kind: Any) -> list[Any]:
    given = values if isinstance(values, np.ndarray) else pa.array(values)
    array = as_arrow(given, kind, "y", len(values))
    assert array.type == kind
    return array.to_pylist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, None], pa.bool_()),
        ([1, None], pa.float64()),
        ([1.5, float("inf")], pa.float32()),
        ([[[1.5]], [[2]]], pa.list_(pa.list_(pa.float32()))),
        ([[], None], pa.list_(pa.int32())),
        (["a"], pa.large_string()),
        ([{"a": 1, "b": "x"}], pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ([datetime.date(2026, 1, 2)], pa.date32()),
        (np.array([1, 2]), pa.int8()),
        (np.array([True, False]), pa.bool_()),
    ],
)
def test_values_that_fit_are_the_same(values: Any, kind: Any) -> None:
    assert arrow(values, kind) == list(values), "SCORE-16"


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        (["3"], pa.int32(), "is string, and outputs= says int32"),
        ([3], pa.string(), "is int64, and outputs= says string"),
        ([3], _TIME, "is int64, and outputs= says timestamp"),
        ([[1.0]], pa.list_(pa.int32()), "says an array of int32"),
        ([b"a"], pa.string(), "is binary, and outputs= says string"),
        ([True], pa.int32(), "is bool, and outputs= says int32"),
        ([300], pa.int8(), "not in range"),
        ([2**60 + 1], pa.float64(), "not in range"),
        ([1e300], pa.float32(), "is double, and outputs= says float: a number is too large for that"),
        (np.array([1.0, 1e300]), pa.float32(), "a number is too large"),
        (np.array([[1e300]]), pa.list_(pa.float32()), "a number is too large"),
        (np.array([True]), pa.int8(), "is bool, and outputs= says int8"),
        ([{"b": 1}], pa.struct([("a", pa.int32())]), "is struct"),
    ],
)
def test_values_that_would_be_others_are_refused(values: Any, kind: Any, said: str) -> None:
    with pytest.raises(WrongOutput, match=said):
        arrow(values, kind)
