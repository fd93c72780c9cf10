"""What the process of a model is told by who starts it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..request.settings import Settings
    from ..spark.session import SessionConf

# How many seconds a process stays for the next use of what one `predict` returned. In `foreachBatch` there is another
# model for each batch.
_IDLE_FOR_ONE = 30.0


def told_of(
    conf: SessionConf,
    settings: Settings,
    *,
    is_for_one: bool = False,
    processes: int = 1,
    autocast: str | None = None,
) -> dict[str, Any]:
    """As `model_process.py` says; a task adds its `gpu`.

    `is_for_one` says that no other `predict` has this model.
    """
    path = list(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))
    return {
        "idle": min(settings.predict_idle, _IDLE_FOR_ONE) if is_for_one else settings.predict_idle,
        "threads": _cores(conf.get),
        "sys_path": path,
        "autocast": autocast,
        "processes": processes,
        "format": "payload",
    }


def _cores(conf: Callable[[str], str | None]) -> int:
    """How many processors an executor has; 0 for all of its host's. YARN and Kubernetes give it one by default."""
    master = conf("spark.master") or ""
    if master == "local":
        return 1
    if master.startswith("local["):
        count = master.removeprefix("local[").partition("]")[0].partition(",")[0]
        return int(count) if count.isdigit() else 0
    if master.startswith("local-cluster["):
        return int(master.split(",")[1])
    by_default = 1 if master.startswith(("yarn", "k8s://")) else 0
    return int(conf("spark.executor.cores") or by_default)
