"""The jar and the plugin for a session that is being built, beside those that the application has already.

SESSION-1 (none-lost): what the user lists as `spark.jars` and `spark.plugins` stays, wherever it is listed.
SESSION-2 (too-late): where the JVM is there already, a warning says what is missing and what to do; nothing is set
that would end the application.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shlex
from typing import TYPE_CHECKING, Any

from .driver_jvm import barrier_runner, why_not
from .jar import PLUGIN, jar_path
from .properties import settings_in
from .session import active_session, application_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")

_JARS, _PLUGINS = "spark.jars", "spark.plugins"
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Gives a builder of a session Phalanx's jar and plugin, and returns it.

    >>> spark = phalanx.configure(SparkSession.builder.appName("training")).getOrCreate()

    Jars and plugins that are listed by the builder, in `spark-defaults.conf` or in PYSPARK_SUBMIT_ARGS stay: the lists
    are joined. A session that is there already keeps what it was started with, and so does an application that
    `spark-submit` started; what it lacks is said by the logger `phalanx`, with what to do. Runs then take the python
    stage.

    Raises `FileNotFoundError` where the package was built without the jar.
    """
    jar = jar_path()
    options: dict[str, Any] = getattr(builder, "_options", {})  # it has no public way to ask
    if "spark.remote" in options or "SPARK_REMOTE" in os.environ:
        logger.warning(
            "A client of Spark Connect can't give its server a jar: start the server with "
            "phalanx.spark_conf(), or use the python stage"
        )
    elif (spark := _session()) is not None:
        _look_at(spark)
    elif (started := _started_with()) is not None:
        _add_to_started(builder, options, started, jar)
    else:
        for key, own in ((_JARS, jar), (_PLUGINS, PLUGIN)):
            builder.config(key, _joined(_listed(key, options), own))
    return builder


def _session() -> SparkSession | None:
    try:
        return active_session()
    except RuntimeError:
        return None


def _look_at(spark: SparkSession) -> None:
    """Says what a session lacks."""
    problem = why_not(spark)
    if problem is None and PLUGIN not in _parts(application_conf(spark.sparkContext)(_PLUGINS)):
        problem = (
            f"it has the jar, but {_PLUGINS} lacks {PLUGIN}, so its executors prepare only in their first run"
        )
    if problem is not None:
        logger.warning(
            f"This session started before phalanx.configure was called, so it stays as it is: {problem}"
        )


def _started_with() -> dict[str, str] | None:
    """The settings of a JVM that waits for its session, as under `spark-submit`; None where there is no JVM yet."""
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _has_jar() -> bool:
    """Whether the JVM that waits for its session has the jar."""
    from pyspark import SparkContext

    return barrier_runner(SparkContext) is not None


def _add_to_started(
    builder: SparkSession.Builder, options: dict[str, Any], started: dict[str, str], jar: str
) -> None:
    names = [os.path.basename(path) for path in _parts(started.get(_JARS))]
    if os.path.basename(jar) in names:
        builder.config(_PLUGINS, _joined(options.get(_PLUGINS, started.get(_PLUGINS)), PLUGIN))
    elif (
        not _has_jar()
    ):  # by another name, or on its class path: then executors may lack it, and would fail of a plugin
        logger.warning(
            "The driver's JVM was started without Phalanx's jar, so runs take the python stage; for the jvm stage: "
            f"spark-submit --jars {jar} --conf {_PLUGINS}={PLUGIN}"
        )


def _listed(key: str, options: dict[str, Any]) -> str | None:
    """What the application will have under this key, and where that is in PYSPARK_SUBMIT_ARGS makes room there."""
    words = shlex.split(os.environ.get(_SUBMIT_ARGS, ""))
    apart = [part for word in words for part in _option_and_value(word)]
    asked = _asked_for(key, apart)
    if asked is None:
        return options.get(key) or _default(key, apart)
    # A later option wins, and the last word is the program.
    own = jar_path() if key == _JARS else PLUGIN
    option = "--jars" if key == _JARS else "--conf"
    value = _joined(asked, own)
    words[-1:-1] = [option, value if key == _JARS else f"{key}={value}"]
    os.environ[_SUBMIT_ARGS] = shlex.join(words)
    return value


def _option_and_value(word: str) -> list[str]:
    """The words that `--option=value` stands for; any other word by itself."""
    option, equals, value = word.partition("=")
    return [option, value] if option.startswith("--") and equals and value else [word]


def _asked_for(key: str, words: list[str]) -> str | None:
    """The value of a setting by the words of a command line of `spark-submit`; None where it is not among them."""
    found = jars = None
    for option, value in itertools.pairwise(words):
        if option in ("--conf", "-c") and value.partition("=")[0] == key:
            found = value.partition("=")[2]
        elif option == "--jars" and key == _JARS:
            jars = value
    return jars or found


def _default(key: str, words: list[str]) -> str | None:
    """The value of a setting in the files of settings that `spark-submit` reads."""
    own = [value for option, value in itertools.pairwise(words) if option == "--properties-file"]
    files = own[-1:]
    if not files or "--load-spark-defaults" in words:
        files.append(os.path.join(_conf_folder(), "spark-defaults.conf"))
    for path in files:
        # Where it can't be read, neither can Spark read it, and says so when it starts.
        with contextlib.suppress(OSError, ValueError):
            if (found := settings_in(path).get(key)) is not None:
                return found
    return None


def _conf_folder() -> str:
    if folder := os.environ.get("SPARK_CONF_DIR"):
        return folder
    import pyspark

    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    return os.path.join(home, "conf")


def _parts(listed: str | None) -> list[str]:
    return [part.strip() for part in (listed or "").split(",") if part.strip()]


def _joined(listed: str | None, own: str) -> str:
    parts = _parts(listed)
    return ",".join(parts if own in parts else [*parts, own])
