"""What the process of a model is told by who starts it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..request.settings import Settings
    from ..spark.session import SessionConf


def told_of(
    conf: SessionConf, settings: Settings, *, processes: int = 1, autocast: str | None = None
) -> dict[str, Any]:
    """As `model_process.py` says; a task adds its `gpu`."""
    path = list(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))
    return {
        "idle": settings.predict_idle,
        "threads": _cores(conf.get),
        "sys_path": path,
        "autocast": autocast,
        "processes": processes,
        "format": "payload",
    }


def _cores(conf: Callable[[str], str | None]) -> int:
    """How many processors an executor has; 0 for all of its host's."""
    master = conf("spark.master") or ""
    if master.startswith("local["):
        count = master.removeprefix("local[").partition("]")[0].partition(",")[0]
        return int(count) if count.isdigit() else 0
    if master.startswith("local-cluster["):
        return int(master.split(",")[1])
    return int(conf("spark.executor.cores") or 0)
