"""What differs between Spark's versions, as far as Python sees it. No other module of Phalanx asks for a version.

SESSION-7 (one-room): a difference that Phalanx can bridge is bridged here.
SESSION-8 (refused-early): what a version can't do is refused before anything has started, and a sentence says why.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..connect import client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = (3, 5)
"""The first Spark with barrier stages of `mapInArrow`, and with tags of jobs."""


def check_pyspark() -> None:
    """Raises `RuntimeError` where this Python's pyspark is too old for Phalanx."""
    import pyspark

    _refuse_too_old("this pyspark", pyspark.__version__)


def check_server(spark: SparkSession) -> None:
    """Raises `RuntimeError` where the server of a client of Spark Connect is too old for Phalanx."""
    if client.is_remote(spark):
        _refuse_too_old("the server of Spark Connect", spark.version)


def _refuse_too_old(what: str, version: str) -> None:
    if (found := _release(version)) is not None and found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RuntimeError(f"Phalanx needs Spark {oldest} or later, and {what} is {version}")


def version_of(spark: SparkSession) -> str:
    """The version of Spark whose abilities the session has: of a client of Spark Connect and its server the older."""
    import pyspark

    versions: list[str] = [spark.version, *([pyspark.__version__] if client.is_remote(spark) else [])]
    return min(versions, key=lambda version: _release(version) or (math.inf,))


def inheriting(spark: SparkSession, target: Callable[..., None]) -> Callable[..., None]:
    """`target` for another thread, with the properties (job group, pool, tags) that the calling one has now."""
    import pyspark
    from pyspark import inheritable_thread_target

    wrapped: Callable[..., None]
    if _release(pyspark.__version__) != (3, 5):
        wrapped = inheritable_thread_target(spark)(target)
    elif client.is_remote(spark):
        # Spark 3.5 knows nothing of the tags that a thread of a client has.
        wrapped = _with_tags(spark, spark.getTags(), target)
    else:
        wrapped = inheritable_thread_target(target)
    return wrapped


@contextlib.contextmanager
def active(spark: Any) -> Iterator[None]:
    """A session of Spark Connect as the calling thread's: pyspark makes resource profiles by no other."""
    sessions = type(spark)._active_session
    before = getattr(sessions, "session", None)
    sessions.session = spark
    try:
        yield
    finally:
        sessions.session = before


def _with_tags(spark: Any, tags: set[str], target: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(target)
    def tagged(*args: Any, **kwargs: Any) -> None:
        for tag in sorted(tags):
            spark.addTag(tag)
        target(*args, **kwargs)

    tags = set(tags)  # the client's own set changes with the thread's tags
    return tagged


def scala_version() -> str:
    """The Scala of the Spark that is here, `2.12` or `2.13`: that of SPARK_HOME, else of this Python's pyspark.

    Where there are no jars, as for a client of Spark Connect, it is what Spark is usually built with.
    """
    folder = os.environ.get("SPARK_HOME") or _pyspark_folder()
    names = os.listdir(jars) if folder and os.path.isdir(jars := os.path.join(folder, "jars")) else []
    found = {match[1] for name in names if (match := re.match(r"spark-core_(2\.\d+)-", name))}
    if len(found) == 1:
        return found.pop()
    release = _pyspark_release()
    return "2.13" if release is None or release >= (4, 0) else "2.12"


def _pyspark_folder() -> str | None:
    found = importlib.util.find_spec("pyspark")
    return os.path.dirname(found.origin) if found is not None and found.origin else None


def _pyspark_release() -> tuple[int, int] | None:
    if _pyspark_folder() is None:
        return None
    import pyspark

    return _release(pyspark.__version__)


def _release(version: str) -> tuple[int, int] | None:
    """`4.3.0.dev1` as (4, 3); None for what has no such beginning."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None
