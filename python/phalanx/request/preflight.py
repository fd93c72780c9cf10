"""The checks before a run starts: this module asks Spark, the Rust core decides, and what is wrong raises.

As JOB-15 says, a run that can't get its slots fails here, by a deadline, and not in Spark's silent retries. As JOB-16
says, every language refuses the same in the same words.

REQUEST-3 (untouched-caller): neither the environment of the caller nor one of its random generators is changed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import _native
from ..connect.client import is_remote
from ..rank import contract
from ..rank.payload import main_of
from ..spark.session import application_conf
from .run_profile import RunProfile
from .slots import OF_APPLICATION, task_slots
from .train_object import Module, text_of

ConfGet = Callable[[str], "str | None"]

SSL_OVERRIDE = "pytorch.spark.distributor.ignoreSsl"
_PLAN_KEYS, _START_KEYS, _SLOT_KEYS, _, _CORES_KEYS = _native.preflight_keys()


def check_num_processes(value: object) -> int:
    """`value` as the number of ranks.

    Raises `TypeError` where it is no int, `ValueError` where it isn't positive.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return _native.num_processes(None, f"{value!r} ({type(value).__name__})")
    return _native.num_processes(value.__index__(), "")


def check_sizes(value: object) -> tuple[int, int | None]:
    """`value` as how many ranks a run has at most, and with how few it goes on, where it says two numbers.

    Raises as `check_num_processes`, and `ValueError` where the first of two is the larger.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        return check_num_processes(value), None
    least, most = map(check_num_processes, value)
    if least > most:
        raise ValueError(
            f"num_processes is {value}, but has to be the fewest and the most ranks: ({most}, {least})"
        )
    return most, least


def is_elsewhere(train_object: object) -> bool:
    """Whether this is the path of a file that isn't on this machine: the executors may have it."""
    return isinstance(train_object, (str, os.PathLike)) and not os.path.exists(train_object)


def check_train_object(train_object: object, kwargs: Mapping[str, Any], *, elsewhere: bool = False) -> None:
    """Whether there is something to run; `elsewhere` says that a file is looked for by the ranks.

    Raises `TypeError` where it is neither callable nor a path; for a path `FileNotFoundError` or
    `IsADirectoryError`, and `ValueError` where it comes with keyword arguments.
    """
    file = other = None
    if isinstance(train_object, (str, os.PathLike)):
        file = os.fsdecode(train_object)
    elif not callable(train_object) and not isinstance(train_object, Module):
        other = f"{train_object!r} ({type(train_object).__name__})"
    _native.check_train_object(
        path=None
        if file is None
        else text_of(os.path.abspath(file)),  # what people are told, and no way to it
        is_file=file is not None and (elsewhere or os.path.exists(file)),
        # As for Python, a folder with a __main__ is a program.
        is_directory=file is not None and os.path.isdir(file) and not main_of(file),
        other=other,
        keywords=list(kwargs),
    )


def plan(
    ranks: int,
    *,
    local_mode: bool,
    use_gpu: bool,
    conf_get: ConfGet,
    resources: Callable[[], Mapping[str, Any]],
    logger: logging.Logger,
) -> tuple[int, int]:
    """How many ranks there will be, and over how many tasks they are spread; fewer ranks than wanted are warned of.

    Raises `RuntimeError` where Spark doesn't know of the GPUs that are wanted.
    """
    ranks, tasks, warning = _native.plan(
        ranks,
        local_mode=local_mode,
        use_gpu=use_gpu,
        driver_has_gpus=use_gpu and local_mode and "gpu" in resources(),
        conf=_asked(_PLAN_KEYS if use_gpu else (), conf_get),
    )
    if warning is not None:
        logger.warning(warning)
    return ranks, tasks


def check_start(conf_get: ConfGet, logger: logging.Logger, *, given: Mapping[str, str] | None = None) -> None:
    """Whether a distributed run may start on this cluster; `given` are settings that win over the session's.

    Raises `RuntimeError` where its tasks can't be on it what `spark.phalanx.gang` says.
    """
    conf = _asked(_START_KEYS, conf_get) | dict(given or {})
    warning = _native.may_start(conf=conf)
    if warning is not None:
        logger.warning(warning)


def check_slots(
    spark: Any, num_tasks: int, timeout: float, logger: logging.Logger, profile: RunProfile | None = None
) -> None:
    """Waits until the cluster has `num_tasks` task slots, of this profile, `timeout` seconds at most.

    Raises `RuntimeError` that says how many there are: at once where that can't change.
    """
    context = _context(spark)
    if context is None:  # Spark Connect tells nobody its slots, but its settings
        conf_get = _getter(spark)
        master = conf_get("spark.master") or ""
    else:
        conf_get, master = application_conf(context), context.master
    conf = _asked(_SLOT_KEYS, conf_get)
    began = time.monotonic()
    looks = 0
    while wait := _native.look_for_slots(
        num_tasks,
        master=master,
        conf=conf,
        profile=None if profile is None else profile.taken,
        timeout=timeout,
        there=_slots(context, profile),
        waited=time.monotonic() - began,
        looks=looks,
    ):
        pause, line = wait
        if line is not None:
            logger.info(line)
        time.sleep(pause)
        looks += 1


def wait_for_slots(
    spark: Any,
    num_tasks: int,
    timeout: float,
    given_up: Callable[[], bool],
    profile: RunProfile | None = None,
) -> None:
    """The same before a stage is submitted again: until the time-out, or until it is given up; what then is missing is
    for Spark to say."""
    context = _context(spark)
    began = time.monotonic()
    while wait := _native.look_before_restart(
        num_tasks, _slots(context, profile), time.monotonic() - began, timeout
    ):
        if given_up():
            return
        time.sleep(wait[0])


def executor_cores(conf_get: ConfGet) -> int:
    """How many cores an executor has; 0 where it has all of whatever host it is on."""
    return _native.executor_cores(conf=_asked(_CORES_KEYS, conf_get))


def partition_count(frame: Any) -> int | None:
    """How many partitions a DataFrame has; None where only running it would tell.

    So it is under Spark Connect, and under adaptive execution, which settles the number of a shuffle's
    partitions when it has run, unless the DataFrame says it: `repartition(n)`.
    """
    try:
        execution = frame._jdf.queryExecution()
        if execution.executedPlan().nodeName() != "AdaptiveSparkPlan":
            return int(execution.toRdd().getNumPartitions())
        plan = execution.optimizedPlan()
        while plan.nodeName() in ("Project", "Filter"):
            plan = plan.children().apply(0)
        if plan.nodeName() == "Repartition":
            return int(plan.numPartitions())
        if plan.nodeName() == "RepartitionByExpression" and plan.optNumPartitions().isDefined():
            return int(plan.optNumPartitions().get())
    except Exception:  # no JVM here, or another Spark's plans: the tasks find out
        return None
    return None


def resources_of(spark: Any) -> Mapping[str, Any]:
    """The driver's resources by name, of a classic session or of Spark Connect's server."""
    try:
        return spark.sparkContext.resources  # type: ignore[no-any-return]
    except Exception:  # Spark Connect has no SparkContext, and says so in many ways
        return spark._client._resources()  # type: ignore[no-any-return]


class Lease:
    """GPUs of the driver that a run has to itself until `release`; the Rust core knows who has which."""

    def __init__(self, spark: Any, ranks: int, *, use_gpu: bool, local_mode: bool) -> None:
        addresses: list[str] | None = None
        if not is_remote(spark):
            gpu = resources_of(spark).get("gpu") if use_gpu else None
            addresses = [] if gpu is None else list(gpu.addresses)
        self._number, self.gpus = _native.lease_gpus(
            ranks,
            use_gpu=use_gpu,
            local_mode=local_mode,
            master=(spark.conf.get("spark.master", None) or "") if use_gpu else "",
            addresses=addresses,
            visible=visible_devices(),
        )

    def release(self) -> None:
        """Gives the GPUs back; again is harmless."""
        _native.release_gpus(self._number)


def visible_devices() -> str | None:
    """Which GPUs CUDA shows this process."""
    return os.environ.get(contract.ENV_VISIBLE_GPUS)


def _asked(keys: Iterable[str], conf_get: ConfGet) -> dict[str, str]:
    found = {key: conf_get(key) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def _getter(spark: Any) -> ConfGet:
    return lambda key: spark.conf.get(key, None)


def _context(spark: Any) -> Any:
    """The SparkContext; None for Spark Connect."""
    try:
        return spark.sparkContext
    except Exception:
        return None


def _slots(context: Any, profile: RunProfile | None) -> int | None:
    return None if context is None else task_slots(context, OF_APPLICATION if profile is None else profile.id)
