"""How a query with a model is put together of Spark's own operators.

SCORE-12 (once-a-row): whatever is done with the outputs, the model is asked once for each row. Where Spark has
functions of Arrow's arrays (4.1), all outputs are one struct of one such function, which Spark takes for one that may
give something else each time, so that it neither copies nor moves it. Only the inputs go through Python then. Older
Spark gives Python all columns of the rows (`mapInArrow`).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from .columns import Inputs, Outputs, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .task import Scoring

_STRUCT = "__phalanx_outputs"
_INPUT = "__phalanx_input_"


def scored(df: DataFrame, inputs: Inputs, outputs: Outputs, scoring: Scoring) -> DataFrame:
    """`df` and the columns of `outputs`, which `scoring` makes."""
    try:
        from pyspark.sql.functions import arrow_udf
    except ImportError:
        return _as_map(df, inputs, outputs, scoring)
    return _as_function(df, inputs, outputs, scoring, arrow_udf)


def _as_function(
    df: DataFrame, inputs: Inputs, outputs: Outputs, scoring: Scoring, arrow_udf: Any
) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import ArrowUDFType

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark would rather read the function's annotations
        made: Any = arrow_udf(scoring.arrays, outputs.schema, ArrowUDFType.SCALAR_ITER).asNondeterministic()
    struct = df.withColumn(_STRUCT, made(f.struct(*inputs.columns)))
    columns = [f.col(f"{_STRUCT}.{quoted(name)}").alias(name) for name in outputs.names]
    return struct.select("*", *columns).drop(_STRUCT)


def _as_map(df: DataFrame, inputs: Inputs, outputs: Outputs, scoring: Scoring) -> DataFrame:
    from pyspark.sql.types import StructType

    schema = StructType([*df.schema.fields, *outputs.schema.fields])
    extra = [column.alias(f"{_INPUT}{at}") for at, column in enumerate(inputs.columns)]
    return df.select("*", *extra).mapInArrow(scoring.rows, schema)
