"""A rank's entry: `python -m phalanx.rank`, started by the supervisor.

From the environment: torchrun's variables; `PHALANX_PAYLOAD`, the file that says what to run;
`PHALANX_RANK_DIR`, the rank's private directory; `PHALANX_NOTES_FD`, where notes to the supervisor go;
`PHALANX_MAX_RESULT_BYTES`, the limit for results of ranks other than 0.

RANK-1: exit code 0 means that `result` is in the rank's directory, whole, or that there is nothing to bring
back: the training code is at its end, or what runs is a file that gave no result and left by `os._exit`. As long as
`owed` is in the directory, exit code 0 means neither. RANK-2: an exception that leaves
the training code is in `error.json` before the process ends, with exit code 1; `sys.exit(n)` ends it with n
and no such file. RANK-3: a rank that failed is gone `FAILED_EXIT_SECONDS` later, whatever its threads and
exit handlers do. RANK-4: nothing is imported here that the training code may not want; torch least of all.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import faulthandler
import io
import os
import sys
import time

from . import inside, raised, watchdog
from .payload import Payload
from .program import prepare
from .results import write_json_result, write_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# How long a rank that failed may wait for its threads and exit handlers (CPython waits forever). The other
# ranks wait for it in their collectives meanwhile; trackers such as wandb flush in an exit handler and want a
# few seconds.
FAILED_EXIT_SECONDS = 10.0

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main() -> NoReturn:
    """Runs the payload and ends the process."""
    _open_output()
    # popped: a program that the training code starts has another file at that number
    notes = inside.Notes(int(os.environ.pop("PHALANX_NOTES_FD", "-1")))
    directory = os.environ["PHALANX_RANK_DIR"]
    inside.enter(notes, directory)
    watchdog.start(notes, directory)
    notes.send({"phase": "rank ready"})
    code = _run(os.environ["PHALANX_PAYLOAD"], directory)
    inside.owe_nothing()
    _leave(code)


def _run(payload_path: str, directory: str) -> int:
    """Runs the payload and writes down how it ended; returns the exit code."""
    started = False
    try:
        payload = Payload(payload_path)
        if payload.kind == "function":
            inside.owe_result()
        call = prepare(payload, directory)
        inside.phase("user code")
        started = True
        try:
            returned = call()
        except SystemExit as request:
            code = _exit_code(request)
            if code != 0:
                return code
            returned = None
        _keep_result(payload, inside.result(returned), directory)
        return 0
    except KeyboardInterrupt as interrupt:
        raised.show(interrupt)
        return INTERRUPTED
    except BaseException as exc:
        at_us = raised.now_us()
        raised.write_error(exc, directory, at_us=at_us, before_start=not started)
        inside.phase("raised")
        raised.show(exc)
        return 1


def _keep_result(payload: Payload, value: object, directory: str) -> None:
    source = "{} returned" if payload.kind == "function" else "{} gave to set_result"
    write = write_json_result if payload.results == "json" else write_result
    write(
        value,
        directory,
        rank=int(os.environ.get("RANK", "0")),
        max_bytes=int(os.environ.get("PHALANX_MAX_RESULT_BYTES", str(64 << 20))),
        what=f"the value that {source.format(payload.name)}",
    )


def _exit_code(request: SystemExit) -> int:
    """The exit code that `sys.exit` asked for; its text, if it is one, goes to stderr."""
    code = request.code
    if code is None:
        return 0
    if isinstance(code, int):
        # the system keeps eight bits: exit(256) must not pass for success
        return code & 0xFF or int(code != 0)
    if sys.stderr is not None:
        print(code, file=sys.stderr)
    return 1


def _open_output() -> None:
    """Whole lines at once, and no character that could fail to print; stacks on stderr at a crash."""
    encoding = None if "PYTHONIOENCODING" in os.environ else "utf-8"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where the descriptor is closed
            stream.reconfigure(encoding=encoding, errors="backslashreplace", line_buffering=True)
    with contextlib.suppress(RuntimeError, OSError, ValueError):
        faulthandler.enable()


def _leave(code: int) -> NoReturn:
    """Ends the process as CPython does, but leaves the interpreter whole: with torch that saves 0.35 s."""
    if code != 0:
        inside.fail()
        _thread.start_new_thread(_leave_in_time, (code,))
    threading = sys.modules.get("threading")
    try:
        if threading is not None:
            threading._shutdown()  # waits for the threads that aren't daemons
    except BaseException as problem:
        raised.show(problem)
    _keep_operators()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # prints what its functions raise
    _exit(code)


def _keep_operators() -> None:
    """Spares the process that torch takes back, one by one, the operators that it has registered: 50 ms of work."""
    weakref = sys.modules.get("weakref")
    with contextlib.suppress(Exception):
        for finalizer in list(weakref.finalize._registry):  # type: ignore[union-attr]
            what = finalizer.peek()
            if what is not None and getattr(what[1], "__module__", None) == "torch.library":
                finalizer.atexit = False


def _leave_in_time(code: int) -> None:
    time.sleep(FAILED_EXIT_SECONDS)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(
            f"phalanx: threads or exit handlers still busy {FAILED_EXIT_SECONDS:.0f} s after the failure:\n"
        )
        sys.stderr.flush()
        faulthandler.dump_traceback()
    os._exit(code)


def _exit(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    if "ctypes" in sys.modules:  # with torch and numpy it is; C code's printf has a buffer of its own
        with contextlib.suppress(BaseException):
            libc = sys.modules["ctypes"].CDLL(None)
            libc.fflush(sys.modules["ctypes"].c_void_p.in_dll(libc, "stdout"))
    os._exit(code)


if __name__ == "__main__":
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        # -m put the working directory first: a file there would shadow modules that the caller sees
        del sys.path[0]
    # Imported again under its own name, so that __main__ is free for the training code.
    from phalanx.rank import main as run_rank

    run_rank()
