"""The line of a driver's gangs of tasks, where it hasn't the jar: one at a time gathers.

STAGE-10 (one-gathers): while a gang gathers, no other of this driver begins to: else each could hold the slots that
the other needs. With the jar the line is the JVM's (`dev.phalanx.spark.driver.Gathering`), for Scala's gangs, too.

STAGE-11 (cancelled-in-line): a gang in the line has no job that Spark could cancel. Where Spark cancels another gang,
with its job group or with all jobs, those that wait in that group, or all, are cancelled, too.
"""

from __future__ import annotations

import threading
from types import TracebackType

# As which Spark cancels a job: there is no field that says so.
_ALL_JOBS = "cancellation of all jobs"
_OF_GROUP = "cancelled job group"


def join(tag: str, group: str | None) -> Turn:
    """A place at the line's end, for a gang whose jobs have this tag, and are of this job group."""
    turn = Turn(tag, group)
    with _lock:
        _line.append(turn)
    return turn


def is_gathering(tag: str) -> bool:
    """Whether it is the turn of the gang with this tag."""
    with _lock:
        return bool(_line) and _line[0].tag == tag


def cancel_with(said: str) -> None:
    """Cancels those that wait and that Spark would have cancelled with the gang of which it says this."""
    with _lock:
        for turn in _line:
            if _ALL_JOBS in said or f"{_OF_GROUP} {turn.group} " in f"{said} ":
                turn.cancelled = said


_lock = threading.Lock()
_line: list[Turn] = []


class Turn:
    """A place in the line; whoever has it asks for its turn every now and then, and closes it."""

    def __init__(self, tag: str, group: str | None) -> None:
        self.tag, self.group = tag, group
        self.cancelled: str | None = None
        """What Spark said of the gang with which this one is cancelled."""

    @property
    def is_held(self) -> bool:
        """Whether it is this gang's turn."""
        with _lock:
            return bool(_line) and _line[0] is self

    def close(self) -> None:
        """Lets the next gang gather; again is harmless."""
        with _lock:
            if self in _line:
                _line.remove(self)

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
