"""What training code can tell Phalanx from inside a rank: phases, steps and a file's result.

RANK-24 (ranks-only): outside a rank, and in the processes that a rank starts, every call does nothing.
RANK-25 (never-disturbs): no call here raises, waits or overwrites anything because of the state of the socket to the
node. Phases and errors are kept where there is no room. Each report is in memory that the node has, too; in a rank
without any the newest is kept.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import sys
import time

from . import contract
from .node_socket import NodeSocket
from .pace import REPORT_SECONDS, Pace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .words import Words

# A node reads lines of up to 4096 bytes; names stay well below.
MAX_NAME_CHARS = 60

# What is kept of an exception's text, which may name a long path, and of the end of its traceback: bytes of JSON,
# together still one line of a note.
MAX_TEXT_BYTES = 1500
MAX_TRACEBACK_BYTES = 1500

# Beyond these a report is cut.
MAX_VALUES = 20

# The largest step that a rank's words can say.
MAX_STEP = (1 << 64) - 2

# The value of a report that says which share of the time since the report before a rank has waited for its loaders.
DATA_SHARE = "data"

_NO_RESULT = object()

# To make one for each report would take as long as to write the report.
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class _Rank:
    """This process as a rank."""

    def __init__(self, node: NodeSocket, directory: str) -> None:
        self.node = node
        self.owed = os.path.join(directory, contract.FILE_OWED)
        self.left = os.path.join(directory, contract.FILE_RESULT)
        self.failed = False
        self.returned = False
        self.pid = os.getpid()
        self.result: object = _NO_RESULT
        self.closed = False
        """What there is of a result has been taken, and nothing is promised any more."""
        self.giving = _thread.RLock()
        self.pace = Pace()
        self.late: dict[str, Any] | None = None
        """The newest report, of a rank that has no memory for them, until it is sent."""
        self.sent_at: float | None = None


_entered: _Rank | None = None


def _this_rank() -> _Rank | None:
    """This process as a rank; None in every other process, also in one that a rank forked."""
    return _entered if _entered is not None and _entered.pid == os.getpid() else None


def in_rank() -> bool:
    """Whether this process is a rank."""
    return _this_rank() is not None


def words() -> Words | None:
    """What this rank and its node have in common memory; None outside a rank, and in one that was given none."""
    rank = _this_rank()
    return None if rank is None else rank.node.words


def enter(node: NodeSocket, directory: str) -> None:
    """Makes this process a rank, whose private folder is `directory`; called by the entry point only."""
    global _entered
    _entered = _Rank(node, directory)


def owe_result() -> None:
    """Says in a file that this process is to leave a result: before it has, each exit is a failure, and then none is.

    Raises `OSError`, which names the file, where it can't be written.
    """
    rank = _this_rank()
    if rank is not None:
        try:
            with open(rank.owed, "wb") as file:
                file.write(b"%d" % rank.pid)
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, rank.owed) from problem


def fail() -> None:
    """This rank ends, and not well; called by the entry point only."""
    rank = _this_rank()
    if rank is not None:
        rank.failed = True


def has_failed() -> bool:
    """Whether this is a rank that is ending after a failure."""
    rank = _this_rank()
    return rank is not None and rank.failed


def settle() -> None:
    """Says that the training code is over; `owe_result` is taken back where there is no result. Called by the entry
    point only."""
    rank = _this_rank()
    if rank is None:
        return
    rank.returned = os.path.exists(rank.owed) and os.path.exists(rank.left)
    if rank.returned:
        rank.node.send({contract.NOTE_RETURNED: True}, keep=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(rank.owed)


def has_returned() -> bool:
    """Whether this is a rank that is ending after it has left the result that it had promised."""
    rank = _this_rank()
    return rank is not None and rank.returned


def phase(name: str) -> None:
    """Says which phase of its work this rank has got to, e.g. `phase("validation")`; shown at the driver.

    Never blocks, never raises for want of a listener, and does nothing outside a rank. Names longer than 60
    characters are cut.
    """
    rank = _this_rank()
    if rank is not None:
        rank.node.send({contract.NOTE_PHASE: str(name)[:MAX_NAME_CHARS]}, keep=True)


def saved(step: int) -> None:
    """Tells that a checkpoint of `step` is there; nothing outside a rank."""
    rank = _this_rank()
    if rank is not None:
        rank.node.send({contract.NOTE_SAVED: step})


def error(record: dict[str, Any]) -> None:
    """Tells what this rank raised, where no file takes it: cut, so that its note stays whole."""
    rank = _this_rank()
    if rank is not None:
        message, trace = str(record[contract.ERROR_MESSAGE]), str(record[contract.ERROR_TRACEBACK])
        cut = {
            contract.ERROR_TYPE_NAME: str(record[contract.ERROR_TYPE_NAME])[:MAX_NAME_CHARS],
            contract.ERROR_MESSAGE: _start(message, MAX_TEXT_BYTES),
            contract.ERROR_TRACEBACK: _start(trace[::-1], MAX_TRACEBACK_BYTES)[::-1],
        }
        rank.node.send({contract.NOTE_ERROR: {**record, **cut}}, keep=True)


def _start(text: str, most: int) -> str:
    """As much of the start as takes so many bytes of JSON, with dots at its end if that isn't all."""
    if len(text) <= most and len(json.dumps(text)) - 2 <= most:
        return text
    left, kept = most - len("..."), 0
    while (left := left - (len(json.dumps(text[kept])) - 2)) >= 0:
        kept += 1
    return f"{text[:kept]}..."


def report(*, step: int, of: int | None = None, **values: Any) -> None:
    """Says which step of the training this rank has done, and numbers beside it: `report(step=120, loss=0.3)`. With
    `of`, the number of all steps, the displays of the run know how much time is left.

    The driver shows it in `run.status` and `run.reports`, names ranks whose steps take much longer than the others do,
    and takes it for a sign that the rank doesn't hang. As often as you like: displays take the newest twice a second,
    and the last one before the rank's end; MLflow takes each, where `mlflow=` says so. Never blocks, never raises for
    want of a listener, and does nothing outside a rank.

    A rank that takes batches from `phalanx.data` also tells `data`, twice a second at most, if no value of yours has
    that name: the share of the time since it told that last in which it waited for them.
    """
    report_beside({}, step=step, of=of, **values)


def report_beside(earlier: dict[str, Any], /, *, step: int, of: int | None = None, **values: Any) -> None:
    """As `report`, with values of an `earlier` step that displays show beside the others."""
    rank = _this_rank()
    if rank is None:
        return
    step = int(step)
    shown, told = _numbers(earlier), _numbers(values)
    step_us, share, is_new = rank.pace.reported(step, time.monotonic())
    if share is not None:
        into = told if is_new else shown
        into.setdefault(DATA_SHARE, round(share, 3))
    note: dict[str, Any] = {
        contract.REPORT_STEP: max(step, 0),
        contract.REPORT_VALUES: told,
        contract.REPORT_AT_MS: int(time.time() * 1000),
    }
    if shown:
        note[contract.REPORT_EARLIER] = shown
    if of is not None:
        note[contract.REPORT_OF] = max(int(of), 0)
    if step_us is not None:
        note[contract.REPORT_STEP_US] = step_us
    words = rank.node.words
    if words is None:
        rank.late = note
        if rank.sent_at is None or time.monotonic() >= rank.sent_at + REPORT_SECONDS:
            send_late_report()
        return
    words.report(min(max(step, 0), MAX_STEP))
    words.reports.put(_ENCODER.encode(note).encode())


def waited_for_data(seconds: float) -> None:
    """Says how long this rank has waited for a batch; its next report has the share of its time that this takes."""
    rank = _this_rank()
    if rank is not None:
        rank.pace.waited(seconds)


def send_late_report() -> None:
    """Sends the newest report of a rank that has no memory for its reports, if it has not been sent."""
    rank = _this_rank()
    if rank is None:
        return
    newest, rank.late = rank.late, None
    if newest is None:  # the watchdog was quicker
        return
    if not rank.node.send({contract.NOTE_REPORT: newest}):
        rank.late = rank.late or newest  # the watchdog tries again
        return
    rank.sent_at = time.monotonic()


def _numbers(values: dict[str, Any]) -> dict[str, float | str]:
    return {str(name)[:MAX_NAME_CHARS]: _number(value) for name, value in list(values.items())[:MAX_VALUES]}


def _number(value: Any) -> float | str:
    """A number as JSON has it; a tensor of one element is one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)[:MAX_NAME_CHARS]
    return number if abs(number) < float("inf") else str(number)


def set_result(value: object) -> None:
    """Leaves `value` as this rank's result, for training files and modules: rank 0's is what `run()` returns.

    The last call counts; the value is pickled when the file has ended. A training function simply returns its
    result, and what it returns goes before. A caller in Scala or Java gets `bytes` (also `bytearray` and
    `memoryview`) as they are and anything else as JSON, by `json.dumps`; what is neither fails rank 0. A call after
    the file's end, in a thread or an exit handler, is too late, and says so. Outside a rank this does nothing, so
    that the file also runs alone.
    """
    rank = _this_rank()
    if rank is None:
        return
    with rank.giving:
        if not rank.closed:
            with contextlib.suppress(OSError):
                owe_result()
            rank.result = value
            return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(
            "phalanx: set_result was called after the end of the training code; the value is not kept\n"
        )


def result(returned: object = None) -> object:
    """The rank's result, which is settled then: what the training code returned, else what it left by `set_result`,
    else None."""
    rank = _this_rank()
    if rank is None:
        return returned
    with rank.giving:
        rank.closed = True
    return rank.result if returned is None and rank.result is not _NO_RESULT else returned
