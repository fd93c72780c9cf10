"""A run that is drawn while it goes, in a thread of its own.

DISPLAY-3 (never-disturbs): a display that raises is given up with one warning. One that hangs keeps its thread, and the
end of the run waits `_END_S` for it, once.
DISPLAY-4 (fiftieth): drawing takes a fiftieth of a processor at most: a run of very many ranks is drawn less often. It
is drawn every `MOST_REST_S` at least.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from .painters import Painter

logger = logging.getLogger("phalanx")

# How long the last drawing may take.
_END_S = 1.0


MOST_REST_S = 10.0


def rest(wanted: float, took: float) -> float:
    """How many seconds are between two drawings, the last of which took so much of a processor (DISPLAY-4)."""
    return max(wanted, min(50 * took, MOST_REST_S))


class LiveDisplay:
    """Draws a run until it is over. Whoever makes one starts it, and stops it or sets `over`."""

    def __init__(
        self,
        make: Callable[[], Painter],
        look: Callable[[], dict[str, Any]],
        over: threading.Event | None = None,
    ) -> None:
        self._make = make
        self._look = look
        self._over = threading.Event() if over is None else over
        self._painter: Painter | None = None
        self._thread: threading.Thread | None = None

    def start(self, *, drawn: bool = False) -> None:
        """Begins. With `drawn` the run has been drawn when this returns, which is at once otherwise."""
        with self._given_up_loudly():
            self._painter = self._make()
            if drawn:
                self._painter.paint(self._look())
            # A notebook's cell is known by the context.
            context = contextvars.copy_context()
            self._thread = threading.Thread(
                target=context.run, args=(self._draw,), name="phalanx-display", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Has the run drawn for the last time."""
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_END_S)

    def around(self, text: str) -> contextlib.AbstractContextManager[None]:
        """Inside of this somebody shows `text`, output of the ranks."""
        painter = self._painter
        return contextlib.nullcontext() if painter is None else painter.around(text)

    def _draw(self) -> None:
        painter = self._painter
        if painter is None:
            return
        with self._given_up_loudly():
            took = 0.0
            while not self._over.wait(rest(painter.wait(), took)):
                began = time.thread_time()
                painter.paint(self._look())
                took = time.thread_time() - began
            painter.end(self._look())

    @contextlib.contextmanager
    def _given_up_loudly(self) -> Any:
        try:
            yield
        except Exception as error:
            self._painter = None
            logger.warning(
                "The run can't be drawn any more (%s: %s); it goes on.", type(error).__name__, error
            )
