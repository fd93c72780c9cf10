"""What the caller's Spark session says of its driver, classic or of Spark Connect."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from ..connect import client
from ..plumbing.own_folder import own_folder
from .spark_version import check_pyspark, check_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COPY_SECONDS = 25.0  # as for folders of the machine: rust/job/src/node/log_directory.rs


def active_session() -> SparkSession:
    """The session of the calling thread, or else the application's.

    Raises `RuntimeError` where there is none, and where its Spark is too old.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.active()
    except Exception as problem:
        raise RuntimeError(
            "TorchDistributor needs an active SparkSession; make one by SparkSession.builder.getOrCreate()"
        ) from problem
    check_server(spark)
    return spark


def hub_endpoint(spark: SparkSession) -> tuple[str, str]:
    """Where the hub binds and what tasks are told: (bind, advertise). That is by Spark's own rules for its driver,
    where `spark.phalanx.hub.host` and `.bindAddress` don't say it."""
    if client.is_remote(spark):
        bind, advertise = client.endpoint(spark)
    else:
        advertise = spark.conf.get("spark.driver.host", None) or socket.gethostname()
        bind = spark.conf.get("spark.driver.bindAddress", None) or ""
    host = (spark.conf.get("spark.phalanx.hub.host", None) or "").strip()
    if host and not bind and client.is_own(advertise):
        bind = advertise  # the address that is told may be somebody else's
    return (spark.conf.get("spark.phalanx.hub.bindAddress", None) or "").strip() or bind, host or advertise


def is_local(spark: SparkSession) -> bool:
    """Whether the driver is the only executor."""
    master: str = spark.conf.get("spark.master", None) or ""
    return master.split("[")[0] == "local"


def copy_by_hadoop(
    spark: SparkSession, files: list[str], folder: str, *, within: float = _COPY_SECONDS
) -> None:
    """Copies files of this machine to a folder of a file system that Hadoop knows, by its URI.

    Raises `RuntimeError` for a client of Spark Connect, py4j's exception where it fails, and `TimeoutError` where it
    isn't done `within` so many seconds.
    """
    if client.is_remote(spark):
        raise RuntimeError("a client of Spark Connect has no JVM to write to a URI")
    problems: list[Exception] = []

    def copy() -> None:
        try:
            path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path
            target = path(folder)
            system = target.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
            system.mkdirs(target)
            for file in files:
                system.copyFromLocalFile(False, True, path(f"file://{file}"), target)
        except Exception as problem:
            problems.append(problem)

    # A thread of its own, since a remote system may hang; the JVM's thread of it is ours alone, too.
    copying = threading.Thread(target=copy, name="phalanx-log-copy", daemon=True)
    copying.start()
    copying.join(within)
    if copying.is_alive():
        raise TimeoutError(f"it takes longer than {within:g} s")
    if problems:
        raise problems[0]


def driver_dir(spark: SparkSession) -> str:
    """Where the driver's own ranks keep their files: Spark's temporary directory, which ends with the application;
    for a client of Spark Connect a folder that ends with the client."""
    return own_folder() if client.is_remote(spark) else str(spark.sparkContext._temp_dir)
