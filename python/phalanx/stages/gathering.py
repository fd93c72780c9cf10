"""The line of a driver's gangs of tasks: one at a time gathers.

STAGE-10 (one-gathers): while a gang gathers, no other of this driver begins to: else each could hold the slots that
the other needs. The line is the JVM's, for Scala's gangs, too, where the driver has the jar; else this process's.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from ..spark.driver_jvm import own_runner


class Turn(Protocol):
    """A place in the line; whoever has it asks for its turn every now and then, and closes it."""

    def isHeld(self) -> bool:
        """Whether it is this gang's turn."""

    def close(self) -> None:
        """Lets the next gang gather; again is harmless."""


def join(context: Any, tag: str) -> Turn:
    """A place at the line's end, for a gang whose jobs have this tag."""
    runner = own_runner(context)
    if runner is None:
        return _OwnTurn(tag)
    turn: Turn = runner.gather(tag)
    return turn


def is_gathering(tag: str) -> bool:
    """Whether it is the turn of the gang with this tag, in this process's line."""
    with _lock:
        return bool(_line) and _line[0].tag == tag


_lock = threading.Lock()
_line: list[_OwnTurn] = []


class _OwnTurn:
    def __init__(self, tag: str) -> None:
        self.tag = tag
        with _lock:
            _line.append(self)

    def isHeld(self) -> bool:
        with _lock:
            return bool(_line) and _line[0] is self

    def close(self) -> None:
        with _lock:
            if self in _line:
                _line.remove(self)
