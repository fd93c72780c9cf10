"""A rank's watchdog: it tells the supervisor what the rank is doing, and writes down all stacks when asked.

WATCH-1: a beat says whether the main thread has run Python since the beat before, without stopping it and without a
signal of the system's: a blocked system call stays blocked. A collective operation that waits looks for signals, and so
has our handler run; that is no progress, and `waits_natively` tells such functions. WATCH-2: stacks are written by
faulthandler, in C, whatever the threads do, to a file of the rank's folder, on the real-time signal that
`PHALANX_STACKS_SIGNAL` numbers. The file is there only once the signal is taken: before, the signal would end the
process. WATCH-3: nothing here raises, and a rank without Phalanx's extension imports none.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import os
import signal
import sys
import time

from . import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, ParamSpec, TypeVar

    _P = ParamSpec("_P")
    _R = TypeVar("_R")

BEAT_SECONDS = 1.0

# Never sent by anybody: the interpreter is only told that it arrived, and calls its handler when it next runs Python.
_RAN: Any = signal.SIGRTMIN + 8

_ran = 0
_waits: set[CodeType] = set()
# Kept open for faulthandler.
_stacks: object = None


def start(notes: inside.Notes, directory: str) -> None:
    """Starts the watchdog; called in the main thread of a rank, once."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        _write_stacks_when_asked(directory)
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        signal.signal(_RAN, _has_run)
        _thread.start_new_thread(_watch, (notes, directory))


def waits_natively(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Marks a function that calls what waits, and handles signals meanwhile."""
    _waits.add(function.__code__)
    return function


def _has_run(_number: int, frame: FrameType | None) -> None:
    global _ran
    if frame is None or frame.f_code not in _waits:
        _ran += 1


def _write_stacks_when_asked(directory: str) -> None:
    global _stacks
    number = int(os.environ.pop("PHALANX_STACKS_SIGNAL", "0"))
    if number == 0:
        return
    path = os.path.join(directory, "stacks")
    file = open(f"{path}.new", "ab", buffering=0)  # noqa: SIM115
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    os.rename(f"{path}.new", path)
    _stacks = file


def _watch(notes: inside.Notes, directory: str) -> None:
    seen = 0
    pid = os.getpid()
    while os.getpid() == pid:
        with contextlib.suppress(Exception):
            operations, doing = _collectives(directory)
            ran, seen = _ran != seen, _ran
            notes.send({"beat": {"ran": ran, "operations": operations, "doing": doing}})
            inside.send_late_report()
            _thread.interrupt_main(_RAN)
        time.sleep(BEAT_SECONDS)


def _collectives(directory: str) -> tuple[int, str]:
    """How many operations of the `phalanx` backend have begun and ended, and the one that runs for longest."""
    native = sys.modules.get("phalanx._native")
    if native is None:
        return 0, ""
    count, longest, doing = 0, 0.0, ""
    for entry in os.scandir(directory):
        if not entry.name.startswith("collective-"):
            continue
        with contextlib.suppress(Exception):  # being made
            _, _, sequence, call, _, running, seconds = native.read_activity(entry.path)
            count += 2 * sequence - running
            if running and seconds >= longest:
                longest, doing = seconds, f"{call}, operation {sequence}, for {seconds:.0f} s"
    return count, doing
