"""A rank's watchdog: it tells the node what the rank is doing, and writes down all stacks when asked.

RANK-32 (python-ran): a beat says whether the main thread has run Python since the beat before. It doesn't stop the
thread, and sends no system signal: a blocked system call stays blocked. A collective operation that waits looks for
signals, so our handler runs there, too. That is no progress; `waits_natively` recognises such functions.
RANK-33 (stacks-in-c): faulthandler writes the stacks in C, whatever the threads do. It writes them to a file of the
rank's folder, on the real-time signal whose number is in `PHALANX_STACKS_SIGNAL`. The file is there only once the
signal has its handler: before, the signal would end the process.
RANK-34 (never-raises): nothing here raises. A rank without Phalanx's extension doesn't import it.
RANK-35 (profile-when-asked): news of the node wake it. If they ask for a profile, it starts the thread that takes it,
once for each number. Nothing of that is imported before.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import os
import signal
import sys
import time

from ..plumbing.whole_file import whole_or_absent
from . import contract, reporting
from .flight_recorder import FlightRecorder
from .node_socket import NodeSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, ParamSpec, TypeVar

    _P = ParamSpec("_P")
    _R = TypeVar("_R")

BEAT_SECONDS = 1.0

# In the rank's folder: what a group of the `phalanx` backend is doing. Only ranks read it.
_ACTIVITY = "collective-"

# Never sent by anybody: the interpreter is only told that it arrived, and calls its handler when it next runs Python.
_RAN: Any = signal.SIGRTMIN + 8

_ran = 0
_waits: set[CodeType] = set()


def start(node: NodeSocket, directory: str) -> None:
    """Starts the watchdog; called in the main thread of a rank, once."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        _write_stacks_when_asked(directory)
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        signal.signal(_RAN, _has_run)
        _thread.start_new_thread(_watch, (node, directory, _thread.get_ident()))


def waits_natively(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Marks a function that calls what waits, and handles signals meanwhile."""
    _waits.add(function.__code__)
    return function


def activity_path(group: str) -> str | None:
    """Where others can read what this rank's group is doing; None outside Phalanx."""
    directory = os.environ.get(contract.ENV_RANK_DIR)
    if not directory:
        return None
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in group)
    return os.path.join(directory, _ACTIVITY + name)


def _has_run(_number: int, frame: FrameType | None) -> None:
    global _ran
    if frame is None or frame.f_code not in _waits:
        _ran += 1


def _write_stacks_when_asked(directory: str) -> None:
    number = int(os.environ.pop(contract.ENV_STACKS_SIGNAL, "0"))
    if number == 0:
        return
    with whole_or_absent(os.path.join(directory, contract.FILE_STACKS)) as file:
        # faulthandler writes to the descriptor whenever it is asked
        faulthandler.register(number, file=os.dup(file.fileno()), all_threads=True, chain=False)


def _watch(node: NodeSocket, directory: str, main: int) -> None:
    seen, profiled, next_beat = 0, 0, time.monotonic()
    recorder = FlightRecorder()
    pid = os.getpid()
    while os.getpid() == pid:
        with contextlib.suppress(Exception):
            profiled = _profile_when_asked(node, directory, profiled, main)
        if time.monotonic() >= next_beat:
            next_beat = time.monotonic() + BEAT_SECONDS
            with contextlib.suppress(Exception):
                operations, doing, busy = _collectives(directory)
                ran, seen = _ran != seen, _ran
                if ran:
                    recorder.forget()
                elif not doing:
                    with contextlib.suppress(Exception):  # another torch
                        doing = recorder.in_flight()
                beat = {
                    contract.BEAT_RAN: ran,
                    contract.BEAT_OPERATIONS: operations,
                    contract.BEAT_COLLECTIVE_US: int(busy * 1e6),
                    contract.BEAT_DOING: doing,
                }
                node.send({contract.NOTE_BEAT: beat})
                reporting.send_late_report()
                _thread.interrupt_main(_RAN)
        left = max(0.0, next_beat - time.monotonic())
        try:
            node.wait(left)
        except Exception:  # it could not be waited for
            time.sleep(left)


def _profile_when_asked(node: NodeSocket, directory: str, profiled: int, main: int) -> int:
    """RANK-35; `profiled` is the number of the last profile that was begun. The same, now."""
    asked = node.news().get(contract.NEWS_PROFILE)
    if asked is None:
        return profiled
    number, seconds = int(asked[contract.PROFILE_NUMBER]), asked[contract.PROFILE_MILLIS] / 1e3
    if number != profiled:
        _thread.start_new_thread(_profile, (directory, number, seconds, main, _thread.get_ident()))
    return number


def _profile(directory: str, number: int, seconds: float, main: int, watchdog: int) -> None:
    with contextlib.suppress(Exception):  # a full disk, or the interpreter is on its way out
        from . import profiler

        profiler.take(directory, number, seconds, main, watchdog)


def _collectives(directory: str) -> tuple[int, str, float]:
    """How many operations of the `phalanx` backend have begun and ended, the one that runs for longest, and for how
    many seconds all of them ran."""
    native = sys.modules.get("phalanx._native")
    if native is None:
        return 0, "", 0.0
    count, longest, doing, busy = 0, 0.0, "", 0.0
    for entry in os.scandir(directory):
        if not entry.name.startswith(_ACTIVITY):
            continue
        with contextlib.suppress(Exception):  # being made
            _, _, sequence, call, _, running, seconds, ran = native.read_activity(entry.path)
            busy += ran
            count += 2 * sequence - running
            if running and seconds >= longest:
                longest, doing = seconds, f"{call}, operation {sequence}, for {seconds:.0f} s"
    return count, doing, busy
