"""How a query with a model is put together of Spark's own operators.

SCORE-12 (once-a-row): whatever is done with the outputs, the model is asked once for each row. Where Spark has
functions of Arrow's arrays (4.1), all outputs are one struct of one such function, which Spark takes for one that may
give something else each time, so that it neither copies nor moves it. Only the inputs go through Python then. Older
Spark gives Python all columns of the rows (`mapInArrow`).

SCORE-24 (rows-in): such a function gets the rows of a filter that keeps them all. Spark 4.3 has another operator of the
same name for columns, as a scan of Parquet files gives them. That makes columns of the rows once more behind the
function, which takes longer than the filter does.

SCORE-21 (jvm-alike): where the session has Phalanx's extension of Spark SQL, which the plugin adds, that plans the
function as an operator without Python workers, which gives the same. What it has to know is in the metadata of the last
field of the function's type, as JSON (`scoring/PredictPlan.scala` reads it). Spark's own operator refuses a type with
metadata, so the extension leaves a plain one where it can't plan the function itself.

key, told, batch_size    as `Scoring` has them; `told` as JSON
columns                  what the inputs and keys are called
rows                     what `whole_rows.py` reads of each batch
env                      variables of the model's process
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ..rank import contract
from ..spark.jar import has_extension
from ..stages.spark_files import drivers_files
from .columns import Inputs, Outputs, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from .task import Scoring

_STRUCT = "__phalanx_outputs"
_INPUT = "__phalanx_input_"


def scored(df: DataFrame, inputs: Inputs, outputs: Outputs, scoring: Scoring, *, by_jvm: bool) -> DataFrame:
    """`df` and the columns of `outputs`, which `scoring` makes, by the executors' JVMs where they can."""
    from pyspark.sql.types import BooleanType, StructField

    from .task import MARK

    may = by_jvm and has_extension(df.sparkSession)
    told = scoring.told_to_jvm(_variables(df)) if may else None
    mark = StructField(MARK, BooleanType(), metadata={MARK: told} if told else None)
    try:
        from pyspark.sql.functions import arrow_udf
    except ImportError:
        return _as_map(df, inputs, outputs, scoring, mark)
    return _as_function(df, inputs, outputs, scoring, mark, arrow_udf)


def _as_function(
    df: DataFrame, inputs: Inputs, outputs: Outputs, scoring: Scoring, mark: StructField, arrow_udf: Any
) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import ArrowUDFType
    from pyspark.sql.types import StructType

    struct = StructType([*outputs.schema.fields, mark])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark would rather read the function's annotations
        made: Any = arrow_udf(scoring.arrays, struct, ArrowUDFType.SCALAR_ITER).asNondeterministic()
    rows = df if mark.metadata else df.filter(f.spark_partition_id() >= 0)
    scored = rows.withColumn(_STRUCT, made(*inputs.columns))
    # As text: py4j asks two dozen questions for a column that is taken out of a struct and named.
    columns = [f"{_STRUCT}.{quoted(name)} AS {quoted(name)}" for name in outputs.names]
    return scored.selectExpr("*", *columns).drop(_STRUCT)


def _variables(df: DataFrame) -> dict[str, str]:
    """What the model's process has to know of the application, wherever it is."""
    files = drivers_files(df.sparkSession)
    return {name: value for name, value in files.items() if name == contract.ENV_PY_FILES}


def _as_map(
    df: DataFrame, inputs: Inputs, outputs: Outputs, scoring: Scoring, mark: StructField
) -> DataFrame:
    from pyspark.sql.types import StructType

    schema = StructType([*df.schema.fields, *outputs.schema.fields, mark])
    extra = [column.alias(f"{_INPUT}{at}") for at, column in enumerate(inputs.columns)]
    return df.select("*", *extra).mapInArrow(scoring.rows, schema).drop(mark.name)
