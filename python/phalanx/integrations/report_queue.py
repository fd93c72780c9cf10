"""What waits for MLflow's server: reports, in order, and what is to be called before and after them. It sends nothing
itself.

LIBRARY-9 (newest-stay): so many reports wait at most. Of more the oldest are left out, and counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

Report = tuple[int, dict[str, Any]]
"""A rank, and what it reported: `step`, `at_ms`, `values`."""


class ReportQueue:
    """For any number of threads that put, and one that takes."""

    def __init__(self, most_waiting: int, most_values: int) -> None:
        """`most_values` is how many numbers are taken at a time."""
        self._most_waiting, self._most_values = most_waiting, most_values
        self._changed = threading.Condition()
        self._reports: deque[Report] = deque()
        self._first: deque[Callable[[], object]] = deque()
        self._calls: deque[Callable[[], object]] = deque()
        self._left_out = 0

    def put(self, rank: int, reports: Sequence[dict[str, Any]], left_out: int) -> None:
        """Puts a rank's reports behind all others; so many of them were left out before. Returns at once."""
        with self._changed:
            self._left_out += left_out
            self._reports.extend((rank, report) for report in reports)
            while len(self._reports) > self._most_waiting:
                self._reports.popleft()
                self._left_out += 1
            self._changed.notify()

    def then(self, call: Callable[[], object], *, first: bool = False) -> None:
        """Has this done when no report waits any more; or `first`, before all reports that wait."""
        with self._changed:
            (self._first if first else self._calls).append(call)
            self._changed.notify()

    def take(self) -> list[Report] | Callable[[], object]:
        """What is to be done first, else the next reports, as many as one call takes; where there are none what is to
        be done then. Waits for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._first or self._reports or self._calls)
            if self._first:
                return self._first.popleft()
            if not self._reports:
                return self._calls.popleft()
            taken, values = [self._reports.popleft()], 0
            while self._reports:
                values += len(taken[-1][1]["values"])
                if values + len(self._reports[0][1]["values"]) > self._most_values:
                    break
                taken.append(self._reports.popleft())
            return taken

    def lost(self, reports: int) -> None:
        """So many that were taken have not arrived."""
        with self._changed:
            self._left_out += reports

    @property
    def left_out(self) -> int:
        """How many reports were left out so far."""
        return self._left_out

    @property
    def waiting(self) -> int:
        """How many reports wait."""
        return len(self._reports)
