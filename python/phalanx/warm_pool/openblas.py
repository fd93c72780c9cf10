"""The threads of OpenBLAS, which numpy and scipy bring along, in a process that has loaded it with one."""

from __future__ import annotations

import contextlib
import os

from ..rank import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# What OpenBLAS calls the function that sets its threads, as built by whom.
_SETTERS = [
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("scipy_", "")
    for suffix in ("64_", "", "_64", "64")
]
# Where it looks for their number when it is loaded.
_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", contract.ENV_OMP_THREADS)


def restore_threads(env: Mapping[str, str]) -> None:
    """Gives each the threads that it would have started with in this environment; a pool's has one."""
    import ctypes

    count = threads(env)
    for path in _loaded("openblas"):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in _SETTERS:
                if hasattr(library, name):
                    getattr(library, name)(count)
                    break


def threads(env: Mapping[str, str]) -> int:
    """How many it begins with in this environment."""
    for name in _VARIABLES:
        digits = ""
        for character in env.get(name, "").strip():  # as atoi reads it
            if not character.isdigit():
                break
            digits += character
        if digits and int(digits) > 0:
            return int(digits)
    return len(os.sched_getaffinity(0))


def _loaded(part: str) -> set[str]:
    """The libraries of this process with `part` in their file's name."""
    with open("/proc/self/maps") as file:
        paths = {
            line.split(maxsplit=5)[5].rstrip("\n") for line in file if line.count(" ") > 4 and "/" in line
        }
    return {path for path in paths if part in os.path.basename(path).lower()}
