"""Spark's resource profile for a run whose tasks take something else than those of the application.

REQUEST-7 (known-once): Spark keeps each profile for ever, and its executors serve no other. So runs that want the same
have the same profile: in an application, over Spark Connect in a session.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..connect.client import is_remote
from ..spark.session import application_conf
from ..spark.versions import active, version_of

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

_KEYS = _native.preflight_keys()[3]
_OWN_KEYS = [key for key in _KEYS if key.startswith("spark.phalanx.")]

# By session and what is taken: those of Spark Connect's sessions, whose server doesn't tell which it has.
_of_sessions: dict[tuple[str, Any], ResourceProfile] = {}
_one_at_a_time = threading.Lock()


class RunProfile(NamedTuple):
    """A profile that Spark knows."""

    taken: Any
    """What it takes, as the Rust core has it."""
    spark: ResourceProfile

    @property
    def id(self) -> int:
        """Spark's number of it."""
        number: int = self.spark.id
        return number


def run_profile(
    spark: SparkSession, settings: Mapping[str, str], *, use_gpu: bool, local_mode: bool, of_dataframe: bool
) -> RunProfile | None:
    """The profile of a run under these settings, which Spark is told; None where it has the application's.

    Raises `RuntimeError` for what no executor has, and where this Spark can't give a run what it wants.
    """
    taken = taken_by(spark, settings, use_gpu=use_gpu, local_mode=local_mode, of_dataframe=of_dataframe)
    if taken is None:
        return None
    with _one_at_a_time:
        return RunProfile(
            taken, _of_session(spark, taken) if is_remote(spark) else _known(spark, _made(taken))
        )


def taken_by(
    spark: Any, settings: Mapping[str, str], *, use_gpu: bool, local_mode: bool, of_dataframe: bool
) -> Any:
    """What the tasks of the run take, as the Rust core has it. Raises as `run_profile`."""
    own = {key: settings[key] for key in _OWN_KEYS if key in settings}
    if not own:
        return None

    def of_session(key: str) -> str | None:
        return spark.conf.get(key, None)  # type: ignore[no-any-return]

    conf_get = of_session if is_remote(spark) else application_conf(spark.sparkContext)
    conf = {key: value for key in _KEYS if (value := conf_get(key)) is not None}
    return _native.profile(
        use_gpu=use_gpu,
        local_mode=local_mode,
        of_dataframe=of_dataframe,
        spark=version_of(spark),
        conf=conf | own,
    )


def _made(taken: Any) -> ResourceProfile:
    from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

    cpus, gpus, executors = taken
    tasks = TaskResourceRequests().cpus(cpus)
    if gpus:
        tasks = tasks.resource("gpu", gpus)
    builder = ResourceProfileBuilder().require(tasks)
    if executors is not None:
        cores, of_executor, script, vendor, overhead_mib = executors
        own = ExecutorResourceRequests().cores(cores)
        if of_executor:
            own = own.resource("gpu", of_executor, script, vendor)
        if overhead_mib:
            own = own.memoryOverhead(f"{overhead_mib}m")
        builder = builder.require(own)
    return builder.build


def _known(spark: SparkSession, made: ResourceProfile) -> ResourceProfile:
    """The one like it that the application has, which is this one if there was none."""
    from pyspark.resource import ResourceProfile

    profiles = spark.sparkContext._jsc.sc().resourceProfileManager()
    of_jvm = made._java_resource_profile
    like = profiles.getEquivalentProfile(of_jvm)
    if like.isDefined():
        return ResourceProfile(_java_resource_profile=like.get())
    profiles.addResourceProfile(of_jvm)
    return made


def _of_session(spark: Any, taken: Any) -> ResourceProfile:
    key = (spark.session_id, taken)
    if key not in _of_sessions:
        made = _made(taken)
        with active(spark):
            made.id  # noqa: B018  # tells the server
        _of_sessions[key] = made
    return _of_sessions[key]
