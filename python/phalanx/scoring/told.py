"""What the process of a model is told by who starts it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ..request.preflight import executor_cores

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
        "threads": executor_cores(conf.get),
        "sys_path": path,
        "autocast": autocast,
        "processes": processes,
        "format": "payload",
    }
