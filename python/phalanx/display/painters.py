"""What draws a run: into a notebook's cell, on a terminal, or as lines into a file; and which of them a run has.

DISPLAY-7 (quiet-files): where nobody watches, a run that doesn't last long prints nothing.
DISPLAY-8 (output-whole): the line on a terminal is taken away before the ranks' output is shown, and never put into an
unfinished line of it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO

from .. import _native
from .cancel_button import cancel_button

# How long a file waits for its first line, and between two: as nobody has asked for them, and as somebody has.
_FILE_SECONDS = 60.0
_ASKED_FILE_SECONDS = 10.0
# How long a terminal waits, so that short runs don't flicker, and between two drawings.
_TERMINAL_SECONDS = 0.5
# How long the ranks' output waits for a terminal that takes nothing.
_LOCK_SECONDS = 0.2


_BY_CALL = "To end the run, call its cancel()."


class Painter(Protocol):
    """Draws snapshots; all but `around` in a thread of its own."""

    def wait(self) -> float:
        """How many seconds there are until the next snapshot is wanted."""
        ...

    def paint(self, snapshot: dict[str, Any]) -> None:
        """Draws the run, which goes on."""
        ...

    def end(self, snapshot: dict[str, Any]) -> None:
        """Draws the run for the last time."""
        ...

    def around(self, text: str) -> contextlib.AbstractContextManager[None]:
        """Inside of this somebody shows `text`, output of the ranks."""
        ...


class NotebookPainter:
    """Draws a page in a cell's output, again and again in the same place.

    The kernel of a notebook hears of a button only while no cell runs. So a run that blocks its cell has none.
    """

    def __init__(self, cancel: Callable[[str], None] | None = None) -> None:
        self._button = None if cancel is None else cancel_button(cancel)
        self._how_to_end = "To end the run, interrupt the kernel." if cancel is None else _BY_CALL
        if self._button is not None:
            self._how_to_end = ""
        self._handle: Any = None
        self._began = time.monotonic()

    def wait(self) -> float:
        """At once; then twice a second, of a long run less often."""
        if self._handle is None:
            return 0.0
        lasted = time.monotonic() - self._began
        return 0.5 if lasted < 60 else 1.0 if lasted < 3600 else 3.0

    def paint(self, snapshot: dict[str, Any]) -> None:
        """Draws the page."""
        import IPython.display

        display: Any = IPython.display.display

        told = json.dumps(snapshot)
        bundle = {
            "text/html": _native.run_page(told, self._how_to_end),
            "text/plain": _native.run_line(told) + "\n",
        }
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def end(self, snapshot: dict[str, Any]) -> None:
        """Draws the page for the last time."""
        self.paint(snapshot)
        if self._button is not None:
            self._button.close()

    def around(self, _text: str) -> contextlib.AbstractContextManager[None]:
        """Output has a place of its own."""
        return contextlib.nullcontext()


class TerminalPainter:
    """Draws one line on a terminal, below the ranks' output."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._lock = threading.Lock()
        self._width = 0
        self._at_line_start = True

    def wait(self) -> float:
        """A terminal is drawn as often as one can read it."""
        return _TERMINAL_SECONDS

    def paint(self, snapshot: dict[str, Any]) -> None:
        """Draws the line in the place of the one before."""
        with self._lock:
            if self._at_line_start:
                columns = max(shutil.get_terminal_size().columns - 1, 0)
                text = _native.run_line(json.dumps(snapshot), columns)
                self._write("\r" + text + " " * (self._width - len(text)))
                self._width = len(text)

    def end(self, _snapshot: dict[str, Any]) -> None:
        """Takes the line away: the result is the caller's to show."""
        with self._lock:
            self._erase()

    @contextlib.contextmanager
    def around(self, text: str) -> Iterator[None]:
        """Takes the line away while output is shown."""
        held = self._lock.acquire(timeout=_LOCK_SECONDS)
        try:
            if held:
                with contextlib.suppress(Exception):
                    self._erase()
            yield
            self._at_line_start = text.endswith("\n")
        finally:
            if held:
                self._lock.release()

    def _erase(self) -> None:
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        self._terminal.write(text)
        self._terminal.flush()


class FilePainter:
    """Writes a line at long intervals."""

    def __init__(self, file: TextIO, seconds: float) -> None:
        self._file = file
        self._seconds = seconds

    def wait(self) -> float:
        """The first line comes late, too: most runs end before."""
        return self._seconds

    def paint(self, snapshot: dict[str, Any]) -> None:
        """Writes the line."""
        self._file.write(f"[phalanx] {_native.run_line(json.dumps(snapshot))}\n")
        self._file.flush()

    def end(self, _snapshot: dict[str, Any]) -> None:
        """What follows says how it ended."""

    def around(self, _text: str) -> contextlib.AbstractContextManager[None]:
        """Lines are whole."""
        return contextlib.nullcontext()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter's, VS Code's, a hosted one."""
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def painter_of(progress: str) -> Callable[[], Painter] | None:
    """What draws a run that is to be shown so: `auto`, `rich`, `plain` or `off`; None where nothing does."""
    if progress == "off":
        return None
    if progress in ("auto", "rich") and in_notebook():
        return NotebookPainter
    err = sys.stderr
    try:
        is_terminal = err.isatty()
    except Exception:  # None, closed, or somebody's own
        return None
    if is_terminal:
        return lambda: TerminalPainter(err)
    return lambda: FilePainter(err, _FILE_SECONDS if progress == "auto" else _ASKED_FILE_SECONDS)
