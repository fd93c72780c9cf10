"""`Observer`: is told what happens in a run. The run knows none of its observers.

RUN-17 (never-fails): what an observer raises is logged, once, and fails no run. The others are told, and so is it, the
next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import threading

logger = logging.getLogger("phalanx")


class Phase(NamedTuple):
    """A point in a run's life."""

    name: str
    rank: int | None
    """None for the job's own phases."""
    seconds: float
    """Since the run was asked for."""


class Restart(NamedTuple):
    """All ranks run again after a restart."""

    attempt: int
    """The number of restarts so far, of any kind."""
    kind: str
    """What it was for: `replaced`, `resized` or `preempted`."""
    ranks: int
    """How many there are."""
    seconds: float
    """For how long no rank worked."""
    steps: int | None
    """How many reported steps came after the newest checkpoint; None where none is known."""


class ObservedRun(Protocol):
    """A run, as far as its observers ask it; from any thread."""

    name: str

    @property
    def done(self) -> bool:
        """Whether it is over."""
        ...

    @property
    def losses(self) -> dict[int, list[tuple[int, float]]]:
        """The loss by step of each rank that reports one."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """The run now."""
        ...

    def stacks(self) -> object:
        """The ranks' stacks; raises where it doesn't run."""
        ...

    def cancel(self, reason: str = ...) -> None:
        """Ends it; returns at once."""
        ...


class Observer:
    """Is told what happens in a run: in the thread that drives it, where nothing else is said. Each method may be left
    out. A method that takes long holds the run up."""

    def started(self, run: ObservedRun, *, waiting: bool) -> None:
        """The run begins; whether the caller waits for it."""

    def phase(self, phase: Phase) -> None:
        """The run, or a rank, has come so far."""

    def output(self, text: str) -> None:
        """The ranks wrote this: whole lines, of the ranks that are to be shown."""

    def reported(self, rank: int, report: dict[str, Any]) -> None:
        """A rank has told its step, and what else it gave to `phalanx.report`: the newest, twice a second at most, and
        the last before its end."""

    def every_report(self, rank: int, reports: Sequence[dict[str, Any]], left_out: int) -> None:
        """A rank has made these reports, in order, each with `step`, `at_ms` (milliseconds since 1970) and `values`; so
        many others were left out on their way. Only of ranks of which the job wants every report."""

    def restarted(self, restart: Restart) -> None:
        """All ranks run again."""

    def over(self, error: BaseException | None) -> None:
        """The run is over, and failed by this; it is not `done` yet."""

    def settled(self, error: BaseException | None) -> None:
        """The outcome is about to be returned or raised, in this thread: at first that of the run, then that of whoever
        asks for the result."""

    def closed(self) -> None:
        """The run's thread is about to leave; nothing follows."""


class Face(Protocol):
    """How a run shows itself where somebody asks for it."""

    def html(self, run: ObservedRun) -> str:
        """The run as a page."""
        ...

    def show(self, run: ObservedRun, over: threading.Event) -> None:
        """Shows it in a notebook's cell, drawn anew until it is `over`."""
        ...

    def figure(self, run: ObservedRun) -> Any:
        """The run as a figure of matplotlib."""
        ...


class Observers:
    """Tells all observers of a run."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._failed: set[int] = set()

    def tell(self, what: Callable[[Observer], object]) -> None:
        """Calls `what` with each. An interrupt is raised when all have been told."""
        interrupt: BaseException | None = None
        for number, observer in enumerate(self._observers):
            try:
                what(observer)
            except Exception as error:
                level = logging.DEBUG if number in self._failed else logging.WARNING
                self._failed.add(number)
                logger.log(
                    level,
                    "%s failed (%s: %s); the run goes on.",
                    type(observer).__name__,
                    type(error).__name__,
                    error,
                )
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
