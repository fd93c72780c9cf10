"""The Spark session of a driver program, and the trainings that it is told to do."""

from __future__ import annotations

import glob
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
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
    take(spark, face)
    return spark


def take(spark: Any, face: str) -> None:
    """From now on runs take this stage."""
    if face != "local":
        spark.conf.set("spark.phalanx.stage", face)


def over_faces(tries: Callable[[str, str], dict[str, Any]]) -> None:
    """The program `APP FOLDER FACE...`: runs `tries(FOLDER, FACE)` over each stage, in one session.

    It prints SEEN and, as JSON, what they returned by face."""
    _, folder, *faces = sys.argv
    spark = session(faces[0])
    seen = {}
    for face in faces:
        take(spark, face)
        seen[face] = tries(folder, face)
    print("SEEN", json.dumps(seen), flush=True)
    spark.stop()


def trainings(spark: Any, folder: str) -> Iterator[tuple[str, str]]:
    """Waits for folders FOLDER/NUMBER-FACE, where NUMBER counts from 0: each, and the stage to take. With the face
    `stop` the application is over."""
    for number in itertools.count():
        while not (found := glob.glob(f"{folder}/{number}-*")):
            time.sleep(0.02)
        face = found[0].rpartition("-")[2]
        if face == "stop":
            spark.stop()
            return
        take(spark, face)
        yield found[0], face
