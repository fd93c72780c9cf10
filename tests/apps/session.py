"""The Spark session of a driver program."""

from __future__ import annotations

import json
import os
from typing import Any


def session(face: str) -> Any:
    """With the settings of DRIVER_CONF, JSON, where it is set; runs take the stage `face`: local, python or jvm.
    Local mode uses no executors, and gets none."""
    from pyspark.sql import SparkSession

    conf = json.loads(os.environ.get("DRIVER_CONF", "{}"))
    if face == "local":
        conf["spark.master"] = "local[2]"
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if face != "local":
        spark.conf.set("spark.phalanx.stage", face)
    return spark
