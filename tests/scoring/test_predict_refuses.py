"""What `phalanx.predict` says of rows, outputs, models and arguments that can't be."""

from __future__ import annotations

import json
import re
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import models
import phalanx
import pytest
import torch
from rows import error_of, numbers, whole_case
from support.own_session import in_session
from support.places import CONTRACT
from support.tiers import whole

pytestmark = pytest.mark.usefixtures("no_model_is_left")

_LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("column", "options", "said"),
    [
        ("if(id = 7, null, x)", {}, "the column 'c' has a null in the row 7 of the partition (id=7); say what"),
        whole_case("if(id = 7, null, array(x))", {}, "has a null in the row 7 of the partition (id=7); fill"),
        whole_case("array(x, if(id = 7, null, x))", {}, "the column 'c' has an array with a null in the row 7 "),
        ("if(id = 7, array(x, x), array(x))", {}, "has 2 elements in the row 7 of the partition (id=7), and 1"),
    ],
    ids=["null", "no-array", "null-within", "lengths"],
)  # fmt: skip
def test_a_row_that_can_t_be_a_tensor_is_named(
    session: Any, column: str, options: dict[str, Any], said: str
) -> None:
    frame = numbers(session, 10, 1).selectExpr("id", f"{column} as c")
    scored = phalanx.predict(
        frame,
        lambda: lambda x: x.reshape(len(x), -1)[:, 0],
        inputs="c",
        outputs="y double",
        keys="id",
        batch_size=4,
        **options,
    )
    assert said in error_of(scored.collect), "SCORE-14"


@whole("other rows")
def test_nulls_and_lengths_are_what_the_caller_says(session: Any) -> None:
    frame = numbers(session, 4, 1).selectExpr("id", "array_repeat(if(id = 2, null, x), int(id) + 1) as c")
    scored = phalanx.predict(
        frame, lambda: lambda x: x.sum(1), inputs="c", outputs="y double", nulls=-1, pad=0
    )
    assert [row.y for row in scored.orderBy("id").collect()] == [0, 2, -3, 12]


@pytest.mark.parametrize(
    ("outputs", "model", "said"),
    [
        ("y int", lambda x: x, "the model's output 'y' is double, and outputs= says int32"),
        whole_case(
            "y double", lambda x: torch.stack([x, x], 1), "has shape (4, 2) for 4 rows, which is not double"
        ),
        whole_case(
            "y array<double>", lambda x: x, "has shape (4,) for 4 rows, which is not an array of double"
        ),
        whole_case("y double", lambda x: x[1:], "has shape (3,) for a batch of 4 rows"),
        whole_case("y double, z double", lambda x: x, "the model returned one Tensor, and outputs= names 2"),
        ("y double, z double", lambda x: {"y": x}, "the model returned y, and outputs= asks for z"),
        whole_case(
            "y tinyint", lambda x: (x + 300).long(), "the model's output 'y' is int64, and outputs= says int8"
        ),
        whole_case("y double", lambda x: object(), "the model's output 'y' is object, and no tensor or list"),
    ],
    ids=["fraction", "matrix", "no-array", "rows", "one", "missing", "range", "object"],
)
def test_an_output_that_is_not_what_was_named_is_an_error_and_never_another_value(
    session: Any, outputs: str, model: Any, said: str
) -> None:
    scored = phalanx.predict(numbers(session, 4, 1), lambda: model, inputs="x", outputs=outputs)
    assert said in error_of(scored.collect), "SCORE-16"


def test_a_model_that_fails_is_an_error_with_its_traceback_and_the_rows(session: Any) -> None:
    frame = numbers(session, 10, 1).selectExpr("id", "id * 2 + if(id = 6, 1, 0) as x")
    scored = phalanx.predict(
        frame, lambda: models.only_even, inputs="x", outputs="y long", keys=["id"], batch_size=4
    )
    text = error_of(scored.collect)
    assert (
        "with the rows 4 to 7 of the partition (id=4 to id=7) the model failed: ValueError: 13 is odd" in text
    )
    assert "in only_even" in text
    assert "serving.py" not in text, "frames of Phalanx's own"


def test_rows_that_the_model_fails_with_are_nulls_where_that_is_asked_for(session: Any) -> None:
    frame = numbers(session, 100, 2).selectExpr("id", "id * 2 + if(id in (6, 7, 50, 99), 1, 0) as x")
    scored = phalanx.predict(
        frame, lambda: models.only_even, inputs="x", outputs="y long", batch_size=16, on_error="null"
    )
    expected = [None if row in (6, 7, 50, 99) else row for row in range(100)]
    assert [row.y for row in scored.collect()] == expected, "SCORE-15"


@pytest.mark.parametrize("preprocess", [None, whole_case(lambda x: x)], ids=["rows", "preprocess"])
def test_outputs_that_are_wrong_are_an_error_where_rows_that_fail_are_nulls(
    session: Any, preprocess: Any
) -> None:
    scored = phalanx.predict(
        numbers(session, 4, 1),
        lambda: lambda x: {"score": x},
        inputs="x",
        outputs="sccore double",
        on_error="null",
        preprocess=preprocess,
    )
    assert "the model returned score, and outputs= asks for sccore" in error_of(scored.collect), "SCORE-16"


@pytest.mark.parametrize("batch_size", [16, whole_case(1)])
def test_rows_with_which_preprocess_fails_are_named_or_nulls(session: Any, batch_size: int) -> None:
    frame = numbers(session, 40, 1).selectExpr("id", "id * 2 + if(id in (6, 17, 39), 1, 0) as x")

    def even(x: torch.Tensor) -> torch.Tensor:
        if bool((x % 2 != 0).any()):
            raise ValueError(f"{int(x[x % 2 != 0][0])} is odd")
        return x

    def scored(**options: Any) -> Any:
        return phalanx.predict(
            frame,
            lambda: models.only_even,
            inputs="x",
            outputs="y long",
            keys="id",
            batch_size=batch_size,
            preprocess=even,
            **options,
        )

    text = error_of(scored().collect)
    rows = (
        "rows 0 to 15 of the partition (id=0 to id=15)"
        if batch_size == 16
        else "row 6 of the partition (id=6)"
    )
    assert f"with the {rows} preprocess failed: ValueError: 13 is odd" in text, "SCORE-14"
    found = scored(on_error="null").collect()
    assert [row.y for row in found] == [None if row in (6, 17, 39) else row for row in range(40)], "SCORE-15"


@whole("another failure")
def test_a_model_that_can_t_be_made_is_an_error_with_its_traceback(session: Any) -> None:
    def make() -> Any:
        raise LookupError("there are no weights")

    text = error_of(phalanx.predict(numbers(session), make, inputs="x", outputs="y double").collect)
    assert "the model can't be had: LookupError: there are no weights" in text
    assert "in make" in text


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"inputs": "z"}, ValueError, "inputs= names 'z', which is not a column: there are id, x, t"),
        ({"inputs": []}, ValueError, "inputs= names no column"),
        ({"inputs": ["x", "x"]}, ValueError, "inputs= names a column twice"),
        ({"outputs": "x double"}, ValueError, "outputs= names 'x', which is there already"),
        ({"outputs": "double"}, ValueError, "outputs='double' has types and no names"),
        ({"outputs": "y nothing"}, ValueError, "outputs='y nothing' is not as"),
        (
            {"outputs": None},
            TypeError,
            "outputs= is missing: the names and Spark types of what the model makes",
        ),
        ({"outputs": 3}, TypeError, "outputs=3 is not a text of names and types"),
        ({"pad": "jagged"}, ValueError, "pad='jagged' is not a number"),
        ({"pad": {"z": 0}}, ValueError, "pad= names 'z', which is not one of inputs=: x"),
        ({"nulls": {"X": 0}}, ValueError, "nulls= names 'X', which is not one of inputs=: x"),
        (
            {"inputs": ["x", "t"], "nulls": {"t": ""}},
            ValueError,
            "nulls= names 't', whose nulls are None in a list",
        ),
        ({"pad": {"x": 0}}, ValueError, "pad= names 'x', which has no arrays"),
        (
            {"model": lambda batch: batch},
            TypeError,
            "missing a required argument: 'batch'; give a function that",
        ),
        ({"nulls": object()}, TypeError, "nulls= and pad= take numbers and texts, not object"),
        ({"batch_size": 0}, ValueError, "batch_size=0 is not a number of rows"),
        ({"on_error": "skip"}, ValueError, "on_error='skip' is not one of 'raise', 'null'"),
        ({"keys": "k"}, ValueError, "keys= names 'k', which is not a column"),
        ({"processes_per_device": 0}, ValueError, "processes_per_device=0 is not a number of processes"),
        ({"autocast": "int8"}, ValueError, "autocast='int8' is not one of None, 'bfloat16', 'float16'"),
        ({"model": 3}, TypeError, "model=int is none"),
        (
            {"model": (7, {"model": {}, "step": 7})},
            TypeError,
            "model= is a state with 'model', 'step', which has weights and no code; load it into its module",
        ),
        ({"model": lambda: _LOCK}, TypeError, "_LOCK"),
    ],
)
def test_what_can_t_be_is_refused_by_the_caller(
    spark: Any, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    given = {"model": models.Twice(), "inputs": "x", "outputs": "y double"} | options
    model = given.pop("model")
    frame = numbers(spark).selectExpr("id", "x", "string(id) as t")
    with pytest.raises(error, match=re.escape(said)):
        phalanx.predict(frame, model, **given)


def test_a_column_of_a_type_that_can_t_go_to_the_model_is_refused_by_the_caller(
    spark: Any, request: pytest.FixtureRequest
) -> None:
    """FEED-75: the tests of Scala read the same table."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.timeType.enabled"))

    as_input = "inputs= names 'c', which is of type .* and can't be a tensor; cast it, or"
    as_key = "keys= names 'c', which is of type .* and can't go to a model's process; cast it"
    for case in json.loads((CONTRACT / "spark_types.json").read_text())["types"]:
        frame = spark.sql(f"select 1 as x, cast(null as {case['type']}) as c")
        for can, options, said in (
            (case["tensor"], {"inputs": "c"}, as_input),
            (case["key"], {"inputs": "x", "keys": "c"}, as_key),
        ):
            with nullcontext() if can else pytest.raises(TypeError, match=said):
                phalanx.predict(frame, models.Twice(), outputs="y double", **options)


@whole("an environment of its own")
def test_a_python_that_can_t_run_a_model_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\")")
    said = in_session(
        "local-cluster[1,1,1024]",
        """
        import phalanx, torch

        spark.sparkContext.setLogLevel("OFF")
        frame = spark.range(3).selectExpr("float(id) as x")
        try:
            phalanx.predict(frame, torch.nn.Identity(), inputs="x", outputs="y float").collect()
            answer = None
        except Exception as problem:
            answer = str(problem)
        """,
        conf={**phalanx.spark_conf(), "spark.executorEnv.PYTHONPATH": str(tmp_path)},
    )
    assert "the model can't be had: ModuleNotFoundError: No module named 'numpy'" in said, said
