"""The Spark session of a driver program."""

from __future__ import annotations

import json
import os
from typing import Any


def session(face: str) -> Any:
    """With the settings of DRIVER_CONF, JSON, where it is set; runs take the stage `face`: local, python or jvm."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config(map=json.loads(os.environ.get("DRIVER_CONF", "{}"))).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if face != "local":
        spark.conf.set("spark.phalanx.stage", face)
    return spark
