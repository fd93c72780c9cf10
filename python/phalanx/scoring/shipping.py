"""How a packed model gets to the executors: once for all queries of a session that use it."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from ..connect.client import is_remote, shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .model import GivenModel

# How many models a session's caller has at hand; an older one is sent again.
_MOST = 8

_shipped: weakref.WeakKeyDictionary[Any, dict[str, ShippedModel]] = weakref.WeakKeyDictionary()


class ShippedModel:
    """A model's bytes, wherever they are: by themselves, as a broadcast, or as a file of Spark's."""

    def __init__(self, where: Any) -> None:
        self._where = where

    def __getstate__(self) -> dict[str, Any]:
        """Raises `RuntimeError` where the session was stopped that has it."""
        context = getattr(self._where, "_sc", None)
        if context is not None and context._jsc is None:
            raise RuntimeError(
                "the Spark session was stopped in which this function was made; make it again in the new one"
            )
        return vars(self)

    def open(self) -> int:
        """A descriptor of a file with the bytes, which is the caller's to close; in a task."""
        file = os.memfd_create("phalanx-model", os.MFD_CLOEXEC)
        with open(file, "wb", closefd=False) as into:
            into.write(self._read())
        return file

    def _read(self) -> bytes:
        if isinstance(self._where, bytes):
            return self._where
        if isinstance(self._where, str):
            from pyspark import SparkFiles

            with open(SparkFiles.get(self._where), "rb") as file:
                return file.read()
        content: bytes = self._where.value
        # The worker needs it once, if at all; the next value is read from the disk again, where it is there: Spark
        # decrypts one only once.
        if getattr(self._where, "_path", None) is not None:
            vars(self._where).pop("_value", None)
        return content


def shipped_model(spark: SparkSession, given: GivenModel) -> ShippedModel:
    """What tasks have a model by. It is there as long as a query that uses it, and while it is one of the newest."""
    holder = spark if is_remote(spark) else spark.sparkContext
    models = _shipped.setdefault(holder, {})
    model = models.pop(given.key, None)
    if model is None:
        where = (
            shipped(spark, given.packed) if is_remote(spark) else spark.sparkContext.broadcast(given.packed)
        )
        model = ShippedModel(where)
    models[given.key] = model  # the newest is the last
    if len(models) > _MOST:
        del models[next(iter(models))]
    return model
