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

from . import openblas
from .late_import import loaded
from .module_check import stat_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


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
        if openblas.threads(os.environ) != 1:
            openblas.restore_threads(os.environ)

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
    torch = loaded("torch")
    if torch is not None:
        torch.default_generator.seed()  # torch.seed would see to other devices, too
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
