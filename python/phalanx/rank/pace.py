"""How fast a rank goes from report to report, and which share of its time it waits for batches.

RANK-42 (spans): both are of spans of half a second at least, from one report to another, so that no single quick step
makes them jump. While the first lasts they are of what there is of it.
"""

from __future__ import annotations

REPORT_SECONDS = 0.5


class Pace:
    """That of one rank."""

    def __init__(self) -> None:
        self._began: tuple[int, float] | None = None
        """The step and the time at which the present span began."""
        self._waited: float | None = None
        """How long it has waited for batches in this span; None before its first batch."""
        self._last: tuple[int | None, float | None] = None, None
        """What the last whole span came to."""

    def waited(self, seconds: float) -> None:
        """It has waited so long for a batch."""
        self._waited = (self._waited or 0.0) + seconds

    def reported(self, step: int, now: float) -> tuple[int | None, float | None, bool]:
        """Takes the step of a report. Microseconds a step, and the share of its time that it waited, where these are
        known; and whether they are of a span that ends with this report."""
        if self._began is None:
            self._begin(step, now)
            return None, None, False
        first, at = self._began
        # Another thread may have ended the span since this one looked at the clock.
        steps, seconds = step - first, max(0.0, now - at)
        is_over = steps != 0 and seconds >= REPORT_SECONDS
        found: tuple[int | None, float | None] = None, None
        if steps > 0:
            share = None if self._waited is None else min(1.0, self._waited / max(seconds, 1e-9))
            found = int(seconds / steps * 1e6), share
        if is_over:
            self._last = found
            self._begin(step, now)
        elif self._last[0] is not None:
            found = self._last
        return *found, is_over

    def _begin(self, step: int, now: float) -> None:
        self._began = step, now
        self._waited = None if self._waited is None else 0.0
