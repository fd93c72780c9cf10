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
        (["a", "b", "a"], pa.string()),
        ([datetime.time(1, 2)], pa.time64("ns")),
        (np.array([1, 2]), pa.int8()),
        (np.array([1, 2.5], ">f4"), pa.float32()),
        (np.array([1, 2], ">i8"), pa.int64()),
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
        ([{"a": 1e300}], pa.struct([("a", pa.float32())]), "a number is too large"),
        ([[{"a": 1e300}]], pa.list_(pa.struct([("a", pa.float32())])), "a number is too large"),
        (np.array([1.0, 1e300]), pa.float32(), "a number is too large"),
        (np.array([[1e300]]), pa.list_(pa.float32()), "a number is too large"),
        (np.array([True]), pa.int8(), "is bool, and outputs= says int8"),
        ([{"b": 1}], pa.struct([("a", pa.int32())]), "is struct"),
    ],
)
def test_values_that_would_be_others_are_refused(values: Any, kind: Any, said: str) -> None:
    with pytest.raises(WrongOutput, match=said):
        arrow(values, kind)


def test_of_a_struct_the_named_fields_are_taken_whatever_others_there_are() -> None:
    kind = pa.struct([("label", pa.string()), ("score", pa.float32())])
    assert arrow([{"score": 0.5, "label": "a", "index": float("inf")}], kind) == [
        {"label": "a", "score": 0.5}
    ]
    assert arrow([{"label": "a"}], kind) == [{"label": "a", "score": None}]
    assert arrow([[{"score": 1}], []], pa.list_(kind)) == [[{"label": None, "score": 1.0}], []]


def test_what_is_stored_another_way_is_the_same_value() -> None:
    coded = pa.array(["a", "b", "a", None]).dictionary_encode()
    assert as_arrow(coded, pa.string(), "y", 4).to_pylist() == ["a", "b", "a", None]
    assert as_arrow(pa.array([b"12"], pa.binary(2)), pa.binary(), "y", 1).to_pylist() == [b"12"]
