"""What a model's process makes of rows that a task hands over: the model's batches, their tensors and their errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from phalanx.scoring.parts import ModelFailed
from phalanx.scoring.whole_rows import RowsRefused, scored, told_of_rows

FIRST = 100


class Model:
    """Twice a number or the sum of an array; it fails with what is negative."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def __call__(self, columns: list[Any], rows: int, names: list[str]) -> Callable[[], list[Any]]:
        values = columns[0].values
        self.given.append(values.tolist())
        assert (len(values), names) == (rows, ["y"])

        def outputs() -> list[Any]:
            if values.min() < 0:
                raise ModelFailed("the model failed: below zero")
            return [values * 2 if values.ndim == 1 else values.sum(1)]

        return outputs


def outputs(model: Model, values: list[Any], ahead: int = 0, **options: Any) -> list[Any]:
    told = {"inputs": "x", "keys": ["x"], "nulls": "error", "pad": None, "on_error": "raise", "batch_size": 4}
    schema = pa.schema([("y", pa.float64())])
    rows = pa.record_batch([pa.array(values)], ["x"])
    made = scored(f"{FIRST} {told_of_rows(schema=schema, **{**told, **options})}", rows, model, ahead)()
    assert made.schema == schema
    return list(made.column(0).to_pylist())


def test_the_model_gets_batches_of_its_size_and_their_outputs_are_in_order() -> None:
    """SCORE-25, SCORE-15"""
    model, values = Model(), [float(n) for n in range(10)]
    assert outputs(model, values) == [2 * value for value in values]
    assert model.given == [values[:4], values[4:8], values[8:]]


def test_one_row_is_a_batch() -> None:
    model = Model()
    assert outputs(model, [3.0]) == [6.0]
    assert model.given == [[3.0]]


def test_arrays_are_padded_to_the_longest_of_their_own_batch() -> None:
    model = Model()
    values = [[1.0], [1.0, 2.0], [3.0], [4.0], [5.0, 5.0, 5.0]]
    assert outputs(model, values, pad=0) == [1, 3, 3, 4, 15]
    assert [np.shape(given) for given in model.given] == [(4, 2), (1, 3)]


def test_a_batch_that_fails_is_named_by_its_own_rows() -> None:
    """SCORE-14"""
    with pytest.raises(
        ModelFailed, match=r"with the rows 104 to 107 of the partition \(x=4.0 to x=7.0\) the model"
    ):
        outputs(Model(), [0.0, 1.0, 2.0, 3.0, 4.0, -5.0, 6.0, 7.0, 8.0])


def test_rows_with_which_the_model_fails_are_nulls_and_no_others() -> None:
    """SCORE-15"""
    values = [0.0, 1.0, 2.0, 3.0, 4.0, -5.0, 6.0, 7.0, -8.0]
    assert outputs(Model(), values, on_error="null") == [None if value < 0 else 2 * value for value in values]


def test_a_row_that_can_t_be_a_tensor_is_named_wherever_it_is() -> None:
    """SCORE-14"""
    with pytest.raises(
        RowsRefused, match=r"the column 'x' has a null in the row 106 of the partition \(x=None\)"
    ):
        outputs(Model(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, None])


def test_what_stands_for_nulls_may_be_a_number_of_numpys_and_no_object() -> None:
    assert outputs(Model(), [1.0, None], nulls=np.float32(7)) == [2, 14]
    schema = pa.schema([("y", pa.float64())])
    assert json.loads(told_of_rows(schema=schema, nulls={"a": np.int64(3)}))["nulls"] == {"a": 3}
    for value in (object(), np.zeros(2)):
        with pytest.raises(
            TypeError, match=f"nulls= and pad= take numbers and texts, not {type(value).__name__}"
        ):
            told_of_rows(schema=schema, nulls=value)


def test_arrays_of_a_batch_have_one_length_whatever_others_have_beside_it() -> None:
    model = Model()
    values = [[1.0], [2.0], [1.0, 2.0], [3.0, 4.0], [5.0]]
    assert outputs(model, values, batch_size=2) == [1, 2, 3, 7, 5]
    assert [np.shape(given) for given in model.given] == [(2, 1), (2, 2), (1, 1)]
    with pytest.raises(
        RowsRefused, match=r"has 2 elements in the row 103 of the partition .*, and 1 in the rows"
    ):
        outputs(Model(), [[1.0], [2.0], [1.0], [3.0, 4.0], [5.0, 6.0]], batch_size=2)


def test_the_next_batch_is_begun_before_one_is_waited_for() -> None:
    """SCORE-26"""
    seen: list[str] = []

    class Beside(Model):
        def __call__(self, columns: list[Any], rows: int, names: list[str]) -> Callable[[], list[Any]]:
            wait, name = super().__call__(columns, rows, names), str(columns[0].values[0])
            seen.append(f"begun {name}")

            def waited() -> list[Any]:
                seen.append(f"waited {name}")
                return wait()

            return waited

    assert outputs(Beside(), [0.0, 1.0, 2.0], ahead=1, batch_size=1) == [0, 2, 4]
    assert seen == ["begun 0.0", "begun 1.0", "waited 0.0", "begun 2.0", "waited 1.0", "waited 2.0"]


def test_a_model_may_use_the_memory_of_its_outputs_again() -> None:
    room = np.empty(2)

    class Again(Model):
        def __call__(self, columns: list[Any], rows: int, names: list[str]) -> Callable[[], list[Any]]:
            np.multiply(columns[0].values, 2, out=room[:rows])
            return lambda: [room[:rows]]

    values = [float(n) for n in range(5)]
    assert outputs(Again(), values, batch_size=2) == [2 * value for value in values], "SCORE-15"
