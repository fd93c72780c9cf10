"""Makes a forked rank look like a process that was just started; POOL-1 says what that means."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import types
from zipimport import zipimporter

from ..rank import contract
from .module_check import stat_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# What OpenBLAS calls the function that sets its threads, as built by whom.
_OPENBLAS_SETTERS = [
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("scipy_", "")
    for suffix in ("64_", "", "_64", "64")
]
# Where it looks for their number when it is loaded.
_OPENBLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", contract.ENV_OMP_THREADS)


class Restorer:
    """Keeps, from a process that has just started, what its forks are to have again."""

    def __init__(self) -> None:
        with open("/proc/self/comm") as file:
            self._comm = file.read().strip()
        self._archives = {finder.archive: stat_of(finder.archive) for finder in _archives().values()}

    def restore(self, env: Mapping[str, str]) -> None:
        """To be called once, in a rank that a guard has forked, before anything of the user's.

        `env` is the environment that it is to have.
        """
        _restore_signals()
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write(self._comm)
        _set_environment(env)
        sys.modules["__main__"] = types.ModuleType("__main__")
        self.forget_folders()
        _seed()
        if openblas_threads(os.environ) != 1:
            restore_openblas_threads(os.environ)

    def forget_folders(self) -> None:
        """Has the next import look at what there is on disk now. `invalidate_caches` alone would also read the
        archives that are what they were: Spark's on a worker's path take 50 ms."""
        kept = {
            entry: finder
            for entry, finder in _archives().items()
            if (stat := stat_of(finder.archive)) and self._archives.get(finder.archive) == stat
        }
        for entry in kept:
            del sys.path_importer_cache[entry]
        importlib.invalidate_caches()
        sys.path_importer_cache.update(kept)


def _archives() -> dict[str, zipimporter]:
    """The archives that imports have looked into, by entry of `sys.path`."""
    return {
        entry: finder for entry, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)
    }


def _restore_signals() -> None:
    """As CPython has them at its start; the mask last, so that what has come meets them."""
    faulthandler.disable()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # none can be set for SIGKILL, SIGSTOP and those of libc's own
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _set_environment(env: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        # through bytes: names and values are UTF-8, whatever the locale's encoding is
        pair = name.encode(), value.encode()
        if os.environb.get(pair[0]) != pair[1]:
            os.environb[pair[0]] = pair[1]


def _seed() -> None:
    """Draws from entropy what a new process draws; Python's `random` does so by itself after a fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # torch.seed would see to other devices, too
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def restore_openblas_threads(env: Mapping[str, str]) -> None:
    """Gives each OpenBLAS the threads that it would have started with in this environment; a pool's has one."""
    import ctypes

    count = openblas_threads(env)
    for path in _loaded("openblas"):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in _OPENBLAS_SETTERS:
                if hasattr(library, name):
                    getattr(library, name)(count)
                    break


def openblas_threads(env: Mapping[str, str]) -> int:
    """How many threads OpenBLAS begins with in this environment."""
    for name in _OPENBLAS_VARIABLES:
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
