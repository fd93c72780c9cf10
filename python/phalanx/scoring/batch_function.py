"""`phalanx.predict_batch_udf`: pyspark's function of that name, whose model is in the process of an executor.

SCORE-17 (as-pyspark): arguments, batches, nulls, checks and messages are pyspark's own, by its own code, and so is what
the user's function is given. What it returns comes to pyspark's checks as it is.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .model import given_function
from .shipping import shipped_model
from .told import told_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from .connection import ModelProcess
    from .shipping import ShippedModel


def predict_batch_udf(
    make_predict_fn: Callable[[], Callable[..., Any]],
    *,
    return_type: DataType | str,
    batch_size: int,
    input_tensor_shapes: list[list[int] | None] | Mapping[int, list[int]] | None = None,
) -> Any:
    """As `pyspark.ml.functions.predict_batch_udf`, which says what the arguments are; the result is a user-defined
    function of Spark's, which can be registered for SQL.

    The function that `make_predict_fn` returns runs in one process for each executor, which all tasks there share. A
    function that is made anew calls `make_predict_fn` anew, as pyspark's does.

    Raises `RuntimeError` without an active Spark session, `UnpicklableError` for a function that can't be sent, and
    what pyspark raises.
    """
    from pyspark.ml.functions import predict_batch_udf as pysparks
    from pyspark.sql.functions import pandas_udf

    from ..request.settings import Settings
    from ..spark.session import SessionConf, active_session

    spark = active_session("predict_batch_udf")
    given = given_function(make_predict_fn)
    conf = SessionConf(spark)
    told = told_of(conf, Settings.read(conf.get, keys=conf.keys))
    remote = _Remote(given.key, shipped_model(spark, given), told)
    # pyspark's own function, of a model that asks the process of the real one.
    inner: Any = pysparks(
        remote.function,
        return_type=return_type,
        batch_size=batch_size,
        input_tensor_shapes=input_tensor_shapes,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark would rather read the function's annotations
        return pandas_udf(_Task(remote, inner.func), inner.returnType, functionType=inner.evalType)


class _Remote:
    """A model that is in another process."""

    def __init__(self, key: str, model: ShippedModel, told: dict[str, Any]) -> None:
        self._key, self._model, self._told = key, model, told

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """A task's time: it has a connection of its own, which pyspark's cache of functions outlives."""
        from .connection import ModelProcess, Place

        place = Place.of_task(self._told["processes"])
        with contextlib.closing(ModelProcess(self._key, self._model, self._told, place)) as process:
            _connections[self._key] = process
            try:
                yield
            finally:
                del _connections[self._key]

    def function(self) -> Callable[..., Any]:
        """What pyspark takes for the user's function: it has as many parameters."""
        from .serving import ARGUMENTS, PARAMETERS

        count: int = self._asked(PARAMETERS, ())

        def function(*arrays: Any) -> Any:
            return self._asked(ARGUMENTS, arrays)

        kind = inspect.Parameter.POSITIONAL_ONLY
        parameters = [inspect.Parameter(f"input_{at}", kind) for at in range(count)]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return function

    def _asked(self, what: str, arguments: tuple[Any, ...]) -> Any:
        return _connections[self._key].call(what, pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL))


# The connection of the task that runs here, by the model's key.
_connections: dict[str, ModelProcess] = {}


class _Task:
    """What pyspark's function does in a task, within a connection."""

    __name__ = "predict"
    """What columns of it are called, as those of pyspark's."""

    def __init__(self, remote: _Remote, inner: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._remote, self._inner = remote, inner

    def __call__(self, data: Iterator[Any]) -> Iterator[Any]:
        with self._remote.connected():
            yield from self._inner(data)
