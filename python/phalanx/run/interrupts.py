"""Ctrl-C, or a notebook's stop button, in the thread that drives a run.

RUN-4 (any-moment): the first Ctrl-C asks for the end, wherever the thread is at that moment, and raises nothing
there: an exception between two lines would lose an event or cut off a line of output. RUN-8 (second): the next one
raises at once, as Python does. RUN-9 (as-before): a handler of the caller's own, such as pyspark's, which cancels
all jobs, is called each time, and is in its place again afterwards.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupts:
    """Takes Ctrl-C as long as its block lasts; in a thread other than the main one, where none arrives, does nothing.

    `ask` is called at the first Ctrl-C, between any two lines of the main thread: it may wait for no lock.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self.pressed = False
        """Whether there was one."""
        self._ask = ask
        self._raises = False
        self._before: Callable[[int, FrameType | None], object] | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):  # else it is ignored, ends the process, or is not Python's
                self._before = before
                signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # a handler that was set meanwhile stays
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._take:
            signal.signal(signal.SIGINT, self._before)

    def press(self) -> None:
        """What the first Ctrl-C does; the next one raises `KeyboardInterrupt`."""
        if self.pressed or self._raises:
            raise KeyboardInterrupt
        self.pressed = True
        self._ask()

    def let_through(self) -> None:
        """From here on also the first one raises at once: there is nothing left to be ended."""
        self._raises = True

    def _take(self, number: int, frame: FrameType | None) -> None:
        assert self._before is not None
        if self.pressed or self._raises:
            self._before(number, frame)
            return
        self.press()
        with contextlib.suppress(KeyboardInterrupt):
            self._before(number, frame)
