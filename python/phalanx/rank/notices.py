"""Whether a host of this run is to go, as training code asks at its steps.

RANK-44 (function-of-step): `preempted` is the same function of the step in every rank: None below some step, and from
there on what is known. So ranks that ask at the same steps do the same, however often others ask.
RANK-45 (a-second): a call takes as long as a few reads of memory. While the driver chooses the step it waits for that,
a second at most.

The node writes notices behind the rank's words: `rust/supervisor/src/notice_writer.rs` has the layout, and
`rust/supervisor/src/freeze.rs` says why no rank is told too late.
"""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

from . import contract, reporting
from .words import Words

# How long a call waits for the driver's choice.
MOST_FROZEN_SECONDS = 1.0
_LOOK_SECONDS = 0.001

_AT = contract.WORDS_BYTES + contract.REPORTS_BYTES


class Notice(NamedTuple):
    """What is known of ranks that are to go, with their hosts or with their executors."""

    hosts: tuple[str, ...]
    """The hosts that they are on, by name."""
    ranks: tuple[int, ...]
    """Which they are."""
    deadline: float | None
    """When the first of them goes, in seconds since 1970 by the driver's clock; None where nobody knows."""
    reason: str
    """Why, as its platform says it."""


class Preempted(Exception):
    """Training code raises it when it has saved what it has, since `preempted` told of hosts that are to go. It fails
    nothing: the run starts all ranks again, elsewhere where it can, as often as `max_preemptions` says.

    `step` is the step to which it had come, `notice` what it was told.
    """

    def __init__(self, step: int, notice: Notice | None = None) -> None:
        super().__init__(step, notice)
        self.step = step
        self.notice = notice

    def __str__(self) -> str:
        if self.notice is None:
            return f"left at step {self.step}"
        hosts = ", ".join(self.notice.hosts)
        return f"left at step {self.step}, since ranks on {hosts} are to go: {self.notice.reason}"


class Notices:
    """What a rank was told, of the memory that the descriptor is of."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._read = 0
        self._told: list[tuple[int, Notice]] = []
        self._is_impatient = False

    def at(self, step: int, words: Words) -> Notice | None:
        """What `preempted` says at a step, which the rank is about to begin."""
        if words.ask(step):
            self._is_impatient = False
        elif not self._thaws(words):
            # The driver is slow. A rank that has waited goes on until it hears of it.
            self._is_impatient = True
            words.go_on(step)
        self._take(words.notices)
        told = [notice for first, notice in self._told if first <= step]
        return told[-1] if told else None

    def _thaws(self, words: Words) -> bool:
        until = time.monotonic() + (0 if self._is_impatient else MOST_FROZEN_SECONDS)
        while words.frozen:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def _take(self, end: int) -> None:
        if end == self._read:
            return
        lines = os.pread(self._fd, end - self._read, _AT + self._read)
        self._read = end
        for line in lines.splitlines():
            told = json.loads(line)
            deadline = told[contract.NOTICE_DEADLINE_MS]
            notice = Notice(
                hosts=tuple(told[contract.NOTICE_HOSTS]),
                ranks=tuple(told[contract.NOTICE_RANKS]),
                deadline=None if deadline is None else deadline / 1000,
                reason=told[contract.NOTICE_REASON],
            )
            self._told.append((told[contract.NOTICE_STEP], notice))


_notices: Notices | None = None


def preempted(step: int) -> Notice | None:
    """Whether ranks of this run are to go, on a spot host or on an executor that Spark decommissions.

    Ask with the number of the step that comes next, which must not fall. Below some step it is None, and from there on
    a `Notice`: in every rank at the same step, though ranks are not all at the same step, and need not all ask. Ranks
    that save together then ask at the same steps, for instance every tenth. Save, and raise `phalanx.Preempted`: all
    ranks start again, elsewhere where they can. `checkpoint.save_if_preempted` does both.

    >>> for step in range(first, steps):
    ...     if notice := phalanx.preempted(step):
    ...         save(step)
    ...         raise phalanx.Preempted(step, notice)

    Outside a rank it is None. It takes microseconds; while the driver chooses the step it waits, a second at most.

    Raises `TypeError` for a step that is no int, and `ValueError` for a negative one.
    """
    global _notices
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"a step has to be an int, not {type(step).__name__}")
    step = step.__index__()
    if not 0 <= step <= reporting.MAX_STEP:
        raise ValueError(f"a step has to be 0 or more, not {step}")
    words = reporting.words()
    if words is None:
        return None
    if _notices is None:
        _notices = Notices(words.fd)
    return _notices.at(step, words)
