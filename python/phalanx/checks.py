"""What can be known to be wrong before a stage starts, said in one sentence.

CHECK-1: a run that can't get its slots fails here, by a deadline, and not in Spark's silent retries: a
barrier stage that lacks slots is tried again every 15 s for ten minutes. CHECK-2: Scala refuses the same in the
same words; `tests/contract/checks.json` has the cases for both.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

ConfGet = Callable[[str], "str | None"]

SSL_OVERRIDE = "pytorch.spark.distributor.ignoreSsl"
SLOTS_TIMEOUT = "spark.phalanx.slots.timeout"


def check_num_processes(value: object) -> int:
    """`value` as the number of ranks.

    Raises `TypeError` where it is no int, `ValueError` where it isn't positive.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"num_processes has to be an int, not {value!r} ({type(value).__name__})")
    number: int = value.__index__()
    if number <= 0:
        raise ValueError("num_processes has to be a positive integer")
    return number


def check_train_object(train_object: object, kwargs: Mapping[str, Any]) -> None:
    """Whether there is something to run.

    Raises `TypeError` where it is neither callable nor a path; for a path `FileNotFoundError` or
    `IsADirectoryError`, and `ValueError` where it comes with keyword arguments.
    """
    if not isinstance(train_object, (str, os.PathLike)):
        if not callable(train_object):
            raise TypeError(
                "train_object has to be a function or the path of a Python file, "
                f"not {train_object!r} ({type(train_object).__name__})"
            )
        return
    path = os.path.abspath(os.fspath(train_object))
    if kwargs:
        raise ValueError(
            f"Running pytorch file does not support key-word type arguments: {', '.join(kwargs)}; "
            "pass them as command line arguments"
        )
    if os.path.isdir(path):
        raise IsADirectoryError(f"the training file {path} is a directory")
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no training file {path}")


def check_dynamic_allocation(conf_get: ConfGet) -> None:
    """Raises `RuntimeError` where Spark would refuse the barrier stage because of dynamic allocation."""
    if _is_true(conf_get("spark.dynamicAllocation.enabled")) and not is_local(conf_get("spark.master") or ""):
        raise RuntimeError(
            "distributed training needs all its executors at once, and Spark refuses that under dynamic "
            "allocation; set spark.dynamicAllocation.enabled to false and fix the number of executors"
        )


def check_encryption(
    conf_get: ConfGet, logger: logging.Logger, override: str = SSL_OVERRIDE, name: str = "TorchDistributor"
) -> None:
    """Raises `RuntimeError` on a cluster with TLS, unless the setting `override` is true; then it warns."""
    if not _is_true(conf_get("spark.ssl.enabled")):
        return
    if not _is_true(conf_get(override)):
        raise RuntimeError(
            f"This cluster has TLS encryption enabled; however, {name} does not encrypt what the ranks send "
            f"each other: gradients, parameters, possibly data. Set '{override}' to 'true' to run anyway."
        )
    logger.warning(
        f"This cluster has TLS encryption enabled; '{override}' is 'true', so {name} runs all the same, "
        "and gradients, parameters and possibly data travel unencrypted."
    )


def check_slots(spark: Any, num_tasks: int, timeout: float, logger: logging.Logger) -> None:
    """Waits until the cluster has `num_tasks` task slots, `timeout` seconds at most.

    At once where the number can't change (a local master) or can't get there (the executors' number and cores
    are set). Spark Connect tells nobody its slots: there it is what its settings say, and nothing is waited for.

    Raises `RuntimeError` that says how many there are.
    """
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect
        _check_limit(
            num_tasks, spark.conf.get("spark.master", None) or "", lambda key: spark.conf.get(key, None)
        )
        return
    conf_get = context.getConf().get
    limit = most_slots(context.master, conf_get)
    deadline = time.monotonic() + timeout
    said = False
    while (slots := _slots(context)) < num_tasks:
        if is_local(context.master):
            limit = slots
        if limit is not None and limit < num_tasks:
            raise _too_small(num_tasks, context.master, limit)
        if time.monotonic() >= deadline:
            raise RuntimeError(
                f"the run needs {num_tasks} task slots at once, but after {timeout:g} s the registered "
                f"executors have {slots}; lower num_processes, add executors, or raise {SLOTS_TIMEOUT}"
            )
        if not said:
            logger.info(f"Waiting for executors: {slots} of {num_tasks} task slots are there")
            said = True
        time.sleep(0.1)


def wait_for_slots(spark: Any, num_tasks: int, timeout: float, given_up: Callable[[], bool]) -> None:
    """Waits until there are `num_tasks` task slots again, `timeout` seconds at most or until it is given up; what then
    is missing is for Spark to say. Spark Connect tells nobody its slots, so there nothing is waited for."""
    try:
        context = spark.sparkContext
    except Exception:
        return
    deadline = time.monotonic() + timeout
    while _slots(context) < num_tasks and time.monotonic() < deadline and not given_up():
        time.sleep(0.1)


def _check_limit(num_tasks: int, master: str, conf_get: ConfGet) -> None:
    threads = re.fullmatch(r"local\[(\d+)(?:,.*)?\]", master)  # local[*]: as many as the server has cores
    per_task = int(conf_get("spark.task.cpus") or 1)
    limit = int(threads[1]) // per_task if threads else most_slots(master, conf_get)
    if limit is not None and limit < num_tasks:
        raise _too_small(num_tasks, master, limit)


def _too_small(num_tasks: int, master: str, limit: int) -> RuntimeError:
    return RuntimeError(
        f"the run needs {num_tasks} task slots at once, but with master {master} there are "
        f"never more than {limit}; lower num_processes or give the application more cores"
    )


def most_slots(master: str, conf_get: Callable[[str], str | None]) -> int | None:
    """The most task slots that the application can ever have; None where that isn't known."""
    per_task = int(conf_get("spark.task.cpus") or 1)
    if match := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master):
        cores = int(conf_get("spark.executor.cores") or match[2])
        return int(match[1]) * (int(match[2]) // cores) * (cores // per_task) if cores <= int(match[2]) else 0
    executors, cores_in_all = conf_get("spark.executor.instances"), conf_get("spark.cores.max")
    if master.startswith(("yarn", "k8s://")) and executors is not None:
        return int(executors) * (int(conf_get("spark.executor.cores") or 1) // per_task)
    if master.startswith("spark://") and cores_in_all is not None:  # standalone doesn't heed the instances
        return int(cores_in_all) // per_task
    return None


def is_local(master: str) -> bool:
    """Whether the driver is the only executor: no dynamic allocation, and slots that never change."""
    return master == "local" or master.startswith("local[")


def check_partitions(frame: Any, num_tasks: int) -> None:
    """Raises `ValueError` where the DataFrame is known not to have a partition for every task."""
    count = partition_count(frame)
    if count is not None and count != num_tasks:
        raise ValueError(
            f"_train_on_dataframe needs a partition for every task: the DataFrame has {count} and the run "
            f"has {num_tasks}; use repartition({num_tasks})"
        )


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


def _slots(context: Any) -> int:
    java = context._jsc.sc()
    return int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))


def _is_true(value: str | None) -> bool:
    return value is not None and value.strip().lower() == "true"
