"""Which GPUs a run gets, and over how many tasks its ranks are spread.

GPU-1: an address is whatever Spark's discovery gave: an index, a GPU's or a MIG instance's UUID.
GPU-2: local runs of this process that are under way at the same time have no GPU in common.
GPU-3: neither the environment nor a random generator of the caller is touched.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

DRIVER_AMOUNT = "spark.driver.resource.gpu.amount"
TASK_AMOUNT = "spark.task.resource.gpu.amount"
VISIBLE = "CUDA_VISIBLE_DEVICES"

ConfGet = Callable[[str], "str | None"]


def driver_limited(
    num_processes: int, conf_get: ConfGet, resources: Mapping[str, Any], logger: logging.Logger
) -> int:
    """How many of `num_processes` local ranks there can be: no more than the driver has GPUs, with a warning.

    Raises `RuntimeError` where Spark knows of no GPU on the driver.
    """
    if "gpu" not in resources:
        raise RuntimeError("GPUs were unable to be found on the driver.")
    available = int(conf_get(DRIVER_AMOUNT) or 0)
    if available == 0:
        raise RuntimeError("GPU resources were not configured properly on the driver.")
    if num_processes > available:
        logger.warning(
            "'num_processes' cannot be set to a value greater than the number of available GPUs on the "
            f"driver, which is {available}. 'num_processes' was reset to be equal to the number of "
            "available GPUs."
        )
    return min(num_processes, available)


def num_tasks(num_processes: int, *, use_gpu: bool, conf_get: ConfGet) -> int:
    """Over how many tasks of the cluster `num_processes` ranks are spread: one rank a task, or one a GPU.

    Raises `RuntimeError` where tasks have no GPU, or where the ranks don't spread evenly over theirs.
    """
    if not use_gpu:
        return num_processes
    text = conf_get(TASK_AMOUNT) or "0"
    amount = float(text)
    if 0 < amount < 1:
        raise RuntimeError(f"'{TASK_AMOUNT}' is {text}, but a rank needs a GPU of its own; set 1 or more.")
    per_task = int(amount)
    if per_task < 1:
        raise RuntimeError(f"'{TASK_AMOUNT}' was unset, so gpu usage is unavailable.")
    if num_processes % per_task != 0:
        raise RuntimeError(
            f"TorchDistributor 'num_processes' value ({num_processes}) must be a multiple of "
            f"'{TASK_AMOUNT}' ({per_task}) value."
        )
    return num_processes // per_task


def resources_of(spark: Any) -> Mapping[str, Any]:
    """The driver's resources by name, of a classic session or of Spark Connect's server."""
    try:
        return spark.sparkContext.resources  # type: ignore[no-any-return]
    except Exception:  # Spark Connect has no SparkContext, and says so in many ways
        return spark._client._resources()  # type: ignore[no-any-return]


def devices(addresses: Sequence[str], visible: str | None) -> list[str]:
    """What `CUDA_VISIBLE_DEVICES` has to say for GPUs at these addresses in a process where it is `visible`.

    Where it is set, integer addresses count its entries, as CUDA does; every other address is taken as it is.

    Raises `ValueError` for an integer that counts beyond the entries.
    """
    if visible is None:
        return list(addresses)
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    found = []
    for address in addresses:
        if not address.isdecimal():
            found.append(address)
        elif int(address) < len(entries):
            found.append(entries[int(address)])
        else:
            raise ValueError(
                f"Spark's GPU {address} is not among the {len(entries)} of {VISIBLE}={visible!r}"
            )
    return found


class Lease:
    """GPUs that a local run of this process has to itself until `release`."""

    def __init__(self, gpus: list[str]) -> None:
        self.gpus = gpus
        self._is_over: Callable[[], bool] = lambda: False

    def release(self) -> None:
        """Gives the GPUs back; again is harmless."""
        with _lock:
            if self in _leases:
                _leases.remove(self)

    def release_when(self, is_over: Callable[[], bool]) -> None:
        """Gives the GPUs back once `is_over()`: asked when the next run wants some, so it needs no thread."""
        self._is_over = is_over


_lock = threading.Lock()
_leases: list[Lease] = []


def take(gpus: Sequence[str], count: int) -> Lease:
    """Takes the first `count` of `gpus` that no other run of this process has.

    Raises `RuntimeError` that says how many are in use, where too few are left.
    """
    with _lock:
        _leases[:] = [lease for lease in _leases if not lease._is_over()]
        in_use = {gpu for lease in _leases for gpu in lease.gpus}
        free = [gpu for gpu in dict.fromkeys(gpus) if gpu not in in_use]
        if len(free) < count:
            used = len(set(gpus) & in_use)
            raise RuntimeError(
                f"the run needs {count} GPUs; the driver has {len(gpus)}, of which {used} are in use by "
                "other runs of this process"
            )
        lease = Lease(free[:count])
        _leases.append(lease)
        return lease


@contextmanager
def taken(gpus: Sequence[str], count: int) -> Iterator[list[str]]:
    """As `take`, for the length of a `with` block."""
    lease = take(gpus, count)
    try:
        yield lease.gpus
    finally:
        lease.release()
