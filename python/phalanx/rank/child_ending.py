"""How a Python program ends that a rank's training code has started, such as a process that multiprocessing spawns.

It ends as Python does. But a thread of gloo's lets go of an operation's tensors some time after the operation is
over, and asks for the interpreter then. If that has just ended, CPython (before 3.14) unwinds the thread, through
functions of C++ that can't be unwound, and the process aborts: `terminate called without an active exception`
(pytorch #190489). A rank is safe from that, since its interpreter is never taken apart (RANK-2).

RANK-43 (threads-first): the interpreter ends when gloo's threads have let go of the operations that are over, or
`BUSY_SECONDS` later. Operations that wait for a peer are not waited for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time

BUSY_SECONDS = 10.0

# Between two looks: whoever asks for the interpreter has it meanwhile.
_PAUSE_SECONDS = 0.001
# As torch calls them (2.13); those of a torch that calls them otherwise are not waited for.
_THREADS = b"pt_gloo_runloop"
_RESTS = b"S"


def install() -> None:
    """To be called when Phalanx is imported below a rank, which torch does, too, where the package is installed."""
    atexit.register(_wait_for_threads)


def _wait_for_threads() -> None:
    if not _states():
        return
    from . import reporting

    if reporting.in_rank():
        return
    until = time.monotonic() + BUSY_SECONDS
    # Twice in succession: at the first look another thread may have been given the interpreter before one of gloo's.
    rested = 0
    while rested < 2 and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
        rested = rested + 1 if set(_states()) <= {_RESTS} else 0


def _states() -> list[bytes]:
    """What gloo's threads do, as the kernel says. Reading lets go of the interpreter, so one that waits for it runs."""
    states = []
    with contextlib.suppress(OSError):  # there is no /proc
        for task in os.listdir("/proc/self/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/self/task/{task}/stat", "rb", buffering=0) as file,
            ):
                name, _, rest = file.read().partition(b"(")[2].rpartition(b") ")
                if name == _THREADS:
                    states.append(rest[:1])
    return states
