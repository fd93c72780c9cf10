"""`phalanx.predict_batch_udf` beside pyspark's own: the same results, the same messages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import phalanx
import pytest
from pyspark.ml.functions import predict_batch_udf as pysparks
from support.own_session import in_session
from support.programs import eventually, models_here
from support.tiers import whole


@pytest.fixture(autouse=True, scope="module")
def no_model_is_left(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.phalanx.predict.idleTimeout", "1s")
    yield
    spark.conf.unset("spark.phalanx.predict.idleTimeout")
    eventually("no process of a model is left", 30, lambda: not models_here())


_STRUCT = {"return_type": "struct<y:float,z:array<float>>"}
_MORE = whole("another case")


def frame(spark: Any) -> Any:
    return spark.range(0, 50, 1, 2).selectExpr(
        "id", "cast(id as float) as a", "cast(id * 2 as double) as b", "if(id = 9, null, float(id)) as n",
        "concat('t', id) as text", "array(float(id), 1F, 2F, 3F) as four",
    )  # fmt: skip


def both(make: Callable[[], Any], columns: list[str], spark: Any, **arguments: Any) -> list[Any]:
    """What either function gives: the values, or the line of the exception that matters."""
    found = []
    for function in (pysparks, phalanx.predict_batch_udf):
        try:
            made = function(make, **arguments)
            found.append([row.out for row in frame(spark).select(made(*columns).alias("out")).collect()])
        except Exception as problem:
            lines = [line.strip() for line in str(problem).splitlines() if "Error: " in line]
            found.append([lines[-1]])
    return found


@pytest.mark.parametrize(
    ("make", "columns", "arguments"),
    [
        (lambda: lambda a, b: a + b, ["a", "b"], {"return_type": "double"}),
        pytest.param(lambda: lambda x: x, ["n"], {"return_type": "float"}, marks=_MORE),
        pytest.param(lambda: lambda x: x, ["text"], {"return_type": "string"}, marks=_MORE),
        pytest.param(lambda: lambda x: x.reshape(len(x), -1), ["four"],
         {"return_type": "array<float>", "input_tensor_shapes": [[2, 2]]}, marks=_MORE),
        pytest.param(lambda: lambda x: {"y": x, "z": x.reshape(-1, 1)}, ["a"], _STRUCT, marks=_MORE),
        pytest.param(lambda: lambda x: [{"y": v, "z": x[:2]} for v in x], ["a"], _STRUCT, marks=_MORE),
    ],
    ids=["two", "nulls", "text", "tensor", "columns", "rows"],
)  # fmt: skip
def test_results_are_pysparks(
    spark: Any, make: Callable[[], Any], columns: list[str], arguments: dict[str, Any]
) -> None:
    from pyspark.sql.types import _parse_datatype_string

    kind = _parse_datatype_string(arguments["return_type"])
    theirs, ours = both(make, columns, spark, batch_size=7, **arguments | {"return_type": kind})
    assert len(theirs) == 50, theirs
    assert repr(ours) == repr(theirs), "SCORE-17"


@whole("what pyspark's own code says")
@pytest.mark.parametrize(
    ("make", "columns", "said"),
    [
        (lambda: lambda a, b, c: a, ["a", "b"], "Model expected 3 inputs, but received 2 columns"),
        (lambda: lambda x: x[1:], ["a"], "Prediction results must have same length as input data"),
        (lambda: lambda x: object(), ["a"], "object of type 'object' has no len()"),
        (lambda: lambda x: x, ["four"], "Tensor columns require input_tensor_shapes"),
    ],
    ids=["parameters", "length", "object", "shapes"],
)
def test_what_pyspark_refuses_is_refused_in_its_words(
    spark: Any, make: Callable[[], Any], columns: list[str], said: str
) -> None:
    from pyspark.sql.types import FloatType

    theirs, ours = both(make, columns, spark, batch_size=7, return_type=FloatType())
    assert said in theirs[0]
    if "object" not in said:
        assert theirs == ours, "SCORE-17"


@whole("another failure")
def test_a_model_that_fails_has_its_traceback(spark: Any) -> None:
    from pyspark.sql.types import FloatType

    def broken(x: Any) -> Any:
        raise LookupError("no such word")

    _, ours = both(lambda: broken, ["a"], spark, batch_size=7, return_type=FloatType())
    assert "the model failed: LookupError: no such word" in ours[0] or "LookupError: no such word" in ours[0]


def test_its_columns_and_warnings_are_pysparks_and_a_broadcast_is_there(spark: Any) -> None:
    from pyspark.sql.types import DoubleType

    by = spark.sparkContext.broadcast({"by": 3.0})

    def make() -> Any:
        return lambda x: x * by.value["by"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = phalanx.predict_batch_udf(make, return_type=DoubleType(), batch_size=10)
    theirs = pysparks(make, return_type=DoubleType(), batch_size=10)
    scored = frame(spark).select(ours("b"))
    assert scored.columns == frame(spark).select(theirs("b")).columns == ["predict(b)"], "SCORE-17"
    assert [row[0] for row in scored.collect()] == [6.0 * row for row in range(50)], "SCORE-17"


@whole("an application of its own")
def test_it_says_that_it_needs_a_session_and_that_its_own_was_stopped() -> None:
    answer = in_session(
        "local[1]",
        """
        import phalanx
        from pyspark.sql.types import LongType

        def said(call):
            try:
                call()
            except Exception as problem:
                return str(problem)

        make = lambda: lambda x: x
        made = phalanx.predict_batch_udf(make, return_type=LongType(), batch_size=10)
        spark.stop()
        answer = [said(lambda: phalanx.predict_batch_udf(make, return_type=LongType(), batch_size=10))]
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        answer.append(said(lambda: spark.range(3).select(made("id")).collect()))
        """,
    )
    assert answer[0].startswith("predict_batch_udf needs an active SparkSession")
    assert "the Spark session was stopped in which this function was made; make it again" in answer[1]


def test_it_can_be_registered_for_sql_and_runs_in_a_process_of_the_executor(spark: Any) -> None:
    from pyspark.sql.types import LongType

    def make() -> Any:
        import os

        import numpy as np

        return lambda x: np.full(len(x), os.getpid())

    spark.udf.register("process", phalanx.predict_batch_udf(make, return_type=LongType(), batch_size=10))
    frame(spark).createOrReplaceTempView("scored")
    found = {row.p for row in spark.sql("select process(a) as p from scored").collect()}
    assert found == {model.pid for model in models_here()} & found
    assert len(found) <= 2, "two executors"
