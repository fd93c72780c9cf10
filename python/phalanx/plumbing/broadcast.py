"""What a broadcast of Spark's is to processes that aren't Spark's."""

from __future__ import annotations

from typing import Any, NamedTuple


class BroadcastValue(NamedTuple):
    """It has the value, as `pyspark.Broadcast` has."""

    value: Any
