"""What the caller's Spark session says of its settings and its driver, classic or of Spark Connect.

SESSION-3 (few-questions): the JVM is asked which settings a session has, by a few questions of py4j, and then once for
each that is set and wanted. In a session with few settings, a warm run of an empty function asks 100 at most.
SESSION-4 (as-it-is): a key and its value are as Spark's `conf` has them, whatever characters they have.
SESSION-5 (no-secrets): the value of a setting that Phalanx has no use for isn't asked for, so no log can have it.
SESSION-10 (stopped-is-said): what belongs to a session that was stopped is refused in a sentence that says what to do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .. import _native
from ..connect import client
from ..plumbing.own_folder import own_folder
from .versions import check_pyspark, check_server

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_COPY_SECONDS = 25.0  # as for folders of the machine: rust/job/src/node/output/log_directory.rs


def active_session(who: str = "TorchDistributor") -> SparkSession:
    """The session of the calling thread, or else the application's; `who` needs it.

    Raises `RuntimeError` where there is none, and where its Spark is too old.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.active()
    except Exception as problem:
        raise RuntimeError(
            f"{who} needs an active SparkSession; create one with SparkSession.builder.getOrCreate()"
        ) from problem
    check_server(spark)
    return spark


def check_running(spark: SparkSession, what: str) -> None:
    """Whether the session of `what` has not been stopped.

    Raises `RuntimeError` where it has been.
    """
    if not _is_stopped(spark):
        return
    try:
        active_session()
        then = "create it again in the session that is active now"
    except RuntimeError:
        then = (
            "create a new session (SparkSession.builder.getOrCreate()), then create it again in that session"
        )
    raise RuntimeError(f"{what} belongs to a Spark session that was stopped; {then}")


class SessionConf:
    """The settings of a session: which there are when this is made, and each value when it is first asked for."""

    def __init__(self, spark: SparkSession) -> None:
        self._conf = spark.conf
        self._found: dict[str, str | None] = {}
        keys = _keys_in_jvm(spark)
        self._knows_all = keys is not None
        self.keys: frozenset[str] = frozenset(self._keys_at_server() if keys is None else keys)
        """Those that are set; empty where Spark can't tell."""

    def get(self, key: str) -> str | None:
        """The value of a key; None where it isn't set."""
        if self._knows_all and key not in self.keys:
            return None
        if key not in self._found:
            self._found[key] = self._conf.get(key, None)
        return self._found[key]

    def _keys_at_server(self) -> Iterable[str]:
        with contextlib.suppress(Exception):  # Spark Connect of Spark 3 can't tell
            return list(self._conf.getAll)
        return ()


def application_conf(context: SparkContext) -> Callable[[str], str | None]:
    """Gives the application's own settings, which a session may hide; an empty one is taken for none.

    `SparkContext.getConf` of pyspark copies all of them first, by several questions for each.
    """
    conf = context._jsc.sc().getConf()
    return lambda key: conf.get(key, "") or None


def hub_endpoint(spark: SparkSession, conf: Callable[[str], str | None]) -> tuple[str, str]:
    """Where the hub binds and what tasks are told: (bind, advertise). That is by Spark's own rules for its driver,
    where `spark.phalanx.hub.host` and `.bindAddress` don't say it; `conf` gives a setting."""
    if client.is_remote(spark):
        bind, advertise = client.endpoint(spark)
    else:
        advertise = conf("spark.driver.host") or socket.gethostname()
        bind = conf("spark.driver.bindAddress") or ""
    set_bind, set_host = conf("spark.phalanx.hub.bindAddress"), conf("spark.phalanx.hub.host")
    return _native.hub_endpoint(bind, advertise, set_bind or "", set_host or "")


def is_local(spark: SparkSession) -> bool:
    """Whether the driver is the only executor."""
    master: str = spark.conf.get("spark.master", None) or ""
    return master.split("[")[0] == "local"


def starts_executors(spark: SparkSession) -> bool:
    """Whether Spark starts executors for tasks that wait, and takes idle ones away."""
    is_dynamic: str = spark.conf.get("spark.dynamicAllocation.enabled", None) or ""
    return is_dynamic.lower() == "true" and not is_local(spark)


def copy_by_hadoop(
    spark: SparkSession, files: list[str], folder: str, *, within: float = _COPY_SECONDS
) -> None:
    """Copies files of this machine to a folder of a file system that Hadoop knows, by its URI.

    Raises `RuntimeError` for a client of Spark Connect, py4j's exception where it fails, and `TimeoutError` where it
    isn't done `within` so many seconds.
    """
    if client.is_remote(spark):
        raise RuntimeError("only Spark's JVM can write to a URI, and a client of Spark Connect can't call it")
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


def _is_stopped(spark: SparkSession) -> bool:
    if client.is_remote(spark):
        stopped: bool = spark.is_stopped  # the classic one lacks it
        return stopped
    return spark.sparkContext._jsc is None


def _keys_in_jvm(spark: Any) -> list[str] | None:
    """The keys that are set; None where there is no JVM to ask, or it doesn't answer."""
    between = os.urandom(16).hex()  # in no key
    try:
        # As one text: py4j asks a question for each key of a collection.
        text: str = spark._jsparkSession.conf().getAll().keys().mkString(between)
    except Exception:
        return None
    return text.split(between)
