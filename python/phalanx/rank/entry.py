"""A rank's entry: what `python -m phalanx.rank` runs, started by the node.

It reads these variables of the environment: those of torchrun; `PHALANX_PAYLOAD`, the file that says what to run;
`PHALANX_RANK_DIR`, the rank's private directory; `PHALANX_NOTES_FD`, the socket to the node;
`PHALANX_MAX_RESULT_BYTES`, the limit for results of ranks other than 0.

RANK-4 (zero-is-done): exit code 0 means that `result` is in the rank's directory, whole, or that there is nothing to
bring back. In the second case the training code is at its end, or what runs is a file that gave no result and left by
`os._exit`. If `owed` is in the directory, the process whose id it has promised a result: without `result` exit code 0
means neither, and with it the exit code means nothing, as NODE-55 says. Nothing is promised once the result is settled.
RANK-5 (recorded-first): an exception that leaves the training code is in `error.json` before the process ends, with
exit code 1, or 75 where it is `phalanx.Preempted`. `sys.exit(n)` ends the process with n and no such file.
RANK-6 (few-imports): nothing is imported here that the training code may not want, and torch least of all.
RANK-7 (one-rank): a process that the training code forks is no rank. It ends as a child of a Python program does, and
leaves neither result nor record.

How the process ends then is in `ending.py`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import sys

from . import contract, ending, error_record, reporting, tracking, watchdog
from .node_socket import NodeSocket
from .payload import Payload
from .program import prepare
from .results import write_json_result, write_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# How long phases and an error that are kept may wait for a node that doesn't read.
LAST_NOTES_SECONDS = 2.0

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main() -> NoReturn:
    """Runs the payload and ends the process."""
    ending.arrange()
    run()


def path_to_be() -> list[str]:
    """The `sys.path` that this rank will have; in a fork of a warm pool, before it is a rank."""
    from . import spark_files
    from .payload import merged_path
    from .script import script_of

    payload = Payload(os.environ[contract.ENV_PAYLOAD])
    path = merged_path([*spark_files.entries(os.environ), *sys.path], payload.sys_path)
    if payload.kind == "file":
        return [script_of(payload, os.environ[contract.ENV_RANK_DIR]).path_entry, *path]
    return [payload.folder, *path] if payload.folder else path


def run() -> NoReturn:
    """As `main`, in a process that has arranged its end."""
    _open_output()
    # popped: a program that the training code starts has another file at that number
    node = NodeSocket(int(os.environ.pop(contract.ENV_NOTES_FD, "-1")))
    directory = os.environ[contract.ENV_RANK_DIR]
    reporting.enter(node, directory)
    tracking.enter(directory)
    watchdog.start(node, directory)
    reporting.phase(contract.PHASE_READY)
    code = _run(os.environ[contract.ENV_PAYLOAD], directory)
    try:
        reporting.settle()
        if code not in (0, ending.PREEMPTED):
            reporting.fail()
        node.finish(LAST_NOTES_SECONDS)
    finally:
        ending.leave(code)


def _run(payload_path: str, directory: str) -> int:
    """Runs the payload and writes down how it ended; returns the exit code."""
    started = False
    try:
        payload = Payload(payload_path)
        if payload.kind == "function":
            reporting.owe_result()
        call = prepare(payload, directory)
        reporting.phase(contract.PHASE_USER_CODE)
        started = True
        try:
            returned = call()
        except SystemExit as request:
            code = _exit_code(request)
            if code != 0:
                return code
            returned = None
        finally:
            reporting.send_late_report()  # the last step is never too late
        if reporting.in_rank():
            _keep_result(payload, reporting.result(returned), directory)
        return 0
    except KeyboardInterrupt as interrupt:
        error_record.show(interrupt)
        return INTERRUPTED
    except BaseException as exc:
        if reporting.in_rank():
            at_us = error_record.now_us()
            error_record.write_error(exc, directory, at_us=at_us, before_start=not started)
            reporting.phase(contract.PHASE_RAISED)
        error_record.show(exc)
        return ending.PREEMPTED if error_record.is_preemption(exc) else 1


def _keep_result(payload: Payload, value: object, directory: str) -> None:
    source = "{} returned" if payload.kind == "function" else "{} gave to set_result"
    write = write_json_result if payload.results == "json" else write_result
    write(
        value,
        directory,
        rank=int(os.environ.get(contract.ENV_RANK, "0")),
        max_bytes=int(os.environ.get(contract.ENV_MAX_RESULT_BYTES, str(64 << 20))),
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
