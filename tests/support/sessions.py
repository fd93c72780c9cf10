"""The Spark session of a process of tests: one at a time, and the same for as long as tests want these settings.

A driver takes seconds to start, and its executors' first tasks more; so files share it, and it ends when another one
is wanted or the tests are over.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

_current: tuple[dict[str, str], Any] | None = None


def classic(conf: Mapping[str, str]) -> Any:
    """A session of a driver in this process with these settings, `spark.master` among them."""
    from pyspark.sql import SparkSession

    return _kept(dict(conf), lambda: SparkSession.builder.config(map=dict(conf)).getOrCreate())


def one_core(conf: Mapping[str, str]) -> Any:
    """A session of a driver in this process with one core, and these settings."""
    bare = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    return classic({**bare, **conf})


def connect(master: str, conf: Mapping[str, str]) -> Any:
    """A client of a Spark Connect server that has this master; classic sessions can't follow in this process."""
    from pyspark.sql import SparkSession

    # Spark 3.5 comes without the server.
    own_jar = os.environ.get("SPARK_CONNECT_JAR")
    server = {"spark.jars": own_jar} if own_jar else {}

    def start() -> Any:
        with warnings.catch_warnings():
            # The settings reach the server when it starts; as settings of the session they can't be changed.
            warnings.simplefilter("ignore")
            return SparkSession.builder.remote(master).config(map={**conf, **server}).getOrCreate()

    return _kept({"remote": master, **conf}, start)


def connect_plugin() -> dict[str, str]:
    """Settings by which a Spark Connect server knows Phalanx's commands; none where Spark is too old for it. One that
    pyspark starts has no plugin but Spark's own, which else would add them."""
    import pyspark
    from phalanx import jar_path

    if pyspark.__version__.startswith("3."):
        return {}
    commands = "dev.phalanx.spark.connect.ConnectPlugin"
    return {"spark.jars": jar_path(), "spark.connect.extensions.command.classes": commands}


def end() -> None:
    """Ends the session, if there is one, and its JVM: its class path is that of its first session."""
    global _current
    if _current is None:
        return
    settings, session = _current
    _current = None
    session.stop()
    if "remote" not in settings:
        _end_jvm()


def _kept(settings: dict[str, str], start: Any) -> Any:
    global _current
    if _current is None or _current[0] != settings:
        end()
        session = start()
        _current = settings, session
        if "remote" not in settings:
            session.sparkContext.setLogLevel("OFF")
    return _current[1]


def _end_jvm() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    # It ends with its stdin.
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None
