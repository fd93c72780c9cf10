"""Saving in the background, one checkpoint at a time.

CHECKPOINT-6 (in-order): a later save, and a look for the newest, waits for the one that is being written.
CHECKPOINT-7 (heard-of): a save that failed is said on stderr at once, and is raised by `result`, or else by the next
call.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable


class Saving:
    """A checkpoint that is being written. The process doesn't end before it is."""

    def __init__(self, step: int, write: Callable[[], str]) -> None:
        self.step = step
        self._path: str | None = None
        self._error: BaseException | None = None
        self._heard_of = False
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(write,), name="phalanx-checkpoint", daemon=False
        )

    @property
    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> str:
        """Waits for the checkpoint; returns its path.

        Raises what `save` raises; `TimeoutError` if it isn't there after `timeout` seconds, and goes on.
        """
        if not self._over.wait(timeout):
            raise TimeoutError(
                f"the checkpoint of step {self.step} was not written within {timeout} s; writing it continues"
            )
        self._heard_of = True
        if self._error is not None:
            raise self._error
        assert self._path is not None
        return self._path

    def _begin(self) -> Saving:
        global _running
        _running = os.getpid(), self
        self._thread.start()
        return self

    def _run(self, write: Callable[[], str]) -> None:
        try:
            self._path = write()
        except BaseException as error:
            self._error = error
            if sys.stderr is not None:
                kind = type(error).__name__
                print(f"phalanx: step {self.step} can't be saved: {kind}: {error}", file=sys.stderr)
        finally:
            self._over.set()


_running: tuple[int, Saving] | None = None


def begin(step: int, write: Callable[[], str]) -> Saving:
    """Has `write` save a checkpoint in a thread of its own. To be called after `finish`."""
    return Saving(step, write)._begin()


def finish() -> None:
    """Waits for what is being written; raises what it failed of, if nobody was told."""
    global _running
    if _running is None:
        return
    (pid, saving), _running = _running, None
    # A process that was forked meanwhile has no such thread.
    if pid == os.getpid() and saving._over.wait() and not saving._heard_of:
        saving.result()
