"""Whether a process can be forked, once it has imported what it was told to.

POOL-3 (only-imports): the pool imports and never computes. At a fork it has one thread, has not touched CUDA, and its
modules are as they are on disk. If one of these doesn't hold, it says so and ends.
"""

from __future__ import annotations

import contextlib
import os

from .late_import import loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .module_check import Imported


def unfit(imported: Imported) -> str | None:
    """Why this process can't be forked from, in a sentence; None if it can."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        names = ", ".join(sorted(_thread_name(t) for t in threads if t != str(os.getpid())))
        return f"something that it imported started a thread ({names})"
    torch = loaded("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "something that it imported initialized CUDA"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                return "something that it imported opened a GPU"
    changed = imported.changed()
    return None if changed is None else f"{changed} has changed since it was imported"


def fork_problem() -> str | None:
    """Why a fork of this process could not use CUDA, or can't be made; found out by making one."""
    torch = loaded("torch")
    try:
        pid = os.fork()
    except OSError as error:
        return f"it can't fork: {error}"
    if pid == 0:
        bad = True
        with contextlib.suppress(BaseException):
            bad = torch is not None and bool(torch.cuda._is_in_bad_fork())
        os._exit(1 if bad else 0)
    _, status = os.waitpid(pid, 0)
    return None if status == 0 else "something that it imported asked CUDA for devices"


def _thread_name(task: str) -> str:
    try:
        with open(f"/proc/self/task/{task}/comm") as file:
            return file.read().strip()
    except OSError:
        return "one that has ended"
