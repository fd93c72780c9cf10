"""`phalanx.predict`: the columns that a model makes of a DataFrame's rows, beside those that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..request.settings import Settings
from ..spark.session import SessionConf, check_running
from .columns import Inputs, Outputs
from .model import given_model
from .plan import scored
from .shipping import shipped_model
from .told import told_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


_AUTOCAST = (None, "bfloat16", "float16")


def predict(
    df: DataFrame,
    model: Any,
    *,
    inputs: str | Sequence[str],
    outputs: str | StructType | None = None,
    batch_size: int = 1024,
    preprocess: Callable[[Any], Any] | None = None,
    nulls: Any = "error",
    pad: Any = None,
    on_error: str = "raise",
    keys: str | Sequence[str] = (),
    processes_per_device: int = 1,
    autocast: str | None = None,
) -> DataFrame:
    """`df` with the columns that `model` makes of its rows.

    It is lazy, as all of Spark's transformations: the model runs when the result is used, in one process for each
    executor, which all tasks there share and which stays for the next query.

    model       a `torch.nn.Module`; the path or URI of a TorchScript or `torch.export` file; `models:/...` or
                `runs:/...` of MLflow; or a function without arguments, which is called once in the model's process and
                returns the function from a batch to its outputs. Each call of `predict` calls it anew
    inputs      the column that the model is given, as one tensor (strings and bytes as a list), or several, as a
                dictionary by their names. Types are those of `phalanx.data`; see docs/predict.md
    outputs     the names and Spark types of what the model returns: `"probability array<float>, label int"`. It returns
                one tensor, as many as these in their order, or a dictionary. A model doesn't tell, so you have to
    batch_size  how many rows the model is given at once, at most
    preprocess  a function from what the model would be given to what it is given. It runs in Spark's own tasks, while
                the model computes
    nulls       what stands for nulls, or `"error"`; by column in a dictionary
    pad         what arrays of different lengths are padded with; by column in a dictionary
    on_error    `"raise"`, or `"null"`: rows with which the model fails have nulls as outputs
    keys        columns whose values messages about a row name
    processes_per_device
                how many processes with the model there are for each executor, or each GPU of one
    autocast    `"bfloat16"` or `"float16"`: what `torch.autocast` computes in, where it may

    Raises `TypeError` and `ValueError` for arguments that can't be, and `UnpicklableError` for a model that can't be
    sent. What goes wrong in a task fails the query, with the model's traceback.
    """
    from .task import ON_ERROR, Scoring  # with numpy, which an import of phalanx doesn't cost

    for argument, count, what in (
        ("batch_size", batch_size, "rows"),
        ("processes_per_device", processes_per_device, "processes"),
    ):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{argument}={count!r} is not a number of {what}, 1 or more")
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error={on_error!r} is not one of {', '.join(map(repr, ON_ERROR))}")
    if autocast not in _AUTOCAST:
        raise ValueError(f"autocast={autocast!r} is not one of {', '.join(map(repr, _AUTOCAST))}")
    if preprocess is not None and not callable(preprocess):
        raise TypeError(f"preprocess={preprocess!r} is not a function")
    spark = df.sparkSession
    check_running(spark, "the DataFrame")
    wanted = Inputs.given(df, inputs, [keys] if isinstance(keys, str) else keys)
    wanted.check_standing(nulls=nulls, pad=pad)
    made = Outputs.given(df, outputs)
    conf = SessionConf(spark)
    settings = Settings.read(conf.get, keys=conf.keys)
    given = given_model(model)
    scoring = Scoring(
        key=given.key,
        model=shipped_model(spark, given),
        told=told_of(
            conf,
            settings,
            is_for_one=given.is_for_one,
            processes=processes_per_device,
            autocast=autocast,
        ),
        inputs=wanted.names,
        outputs=made.schema,
        batch_size=batch_size,
        preprocess=preprocess,
        nulls=nulls,
        pad=pad,
        on_error=on_error,
        keys=wanted.keys,
    )
    return scored(df, wanted, made, scoring, by_jvm=settings.stage != "python")
