"""The jar of the JVM's side, which comes with the package, and the settings that give it to Spark."""

from __future__ import annotations

import os

from . import __version__

NAME = f"phalanx-spark_2.13-{__version__}.jar"
PLUGIN = "dev.phalanx.spark.PhalanxPlugin"


def jar_path() -> str:
    """The path of the jar: what `spark-submit --jars` or a Scala build takes.

    Raises `FileNotFoundError` where the package was built without it.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jars", NAME)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"this installation of Phalanx was built without the jar ({path}); "
            "`make build` in a clone builds it, and the wheel built after that carries it"
        )
    return path


def spark_conf() -> dict[str, str]:
    """Settings of Spark with which its executors start and watch the ranks themselves, without Python workers.

    They count when the application starts, not in a session that is there already:

    >>> SparkSession.builder.config(map=phalanx.spark_conf()).getOrCreate()

    With `spark-submit`, give each by `--conf key=value`. Where the application has jars or plugins of its own,
    join the two lists by commas.

    Raises `FileNotFoundError` where the package was built without the jar.
    """
    return {"spark.jars": jar_path(), "spark.plugins": PLUGIN}
