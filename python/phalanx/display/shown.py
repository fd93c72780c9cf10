"""A run where its caller looks: the ranks' output, how it stands meanwhile, and the run itself in a notebook."""

from __future__ import annotations

import json
import threading
from typing import Any

from .. import _native
from ..run.observer import ObservedRun, Observer
from .label import Label
from .live import LiveDisplay
from .live_output import LiveOutput
from .painters import NotebookPainter, in_notebook, painter_of


class Shown(Observer):
    """Shows the ranks' output as it comes, and while the caller waits for the run how it stands."""

    def __init__(self, name: str, progress: str) -> None:
        """`name` is the run's, `progress` is `auto`, `rich`, `plain` or `off`."""
        self._progress = progress
        self._label = Label(name)
        self._show = LiveOutput(self._label)
        self._display: LiveDisplay | None = None

    def started(self, run: ObservedRun, *, waiting: bool) -> None:
        """Begins to draw; who doesn't wait shows the run itself."""
        self._label.__enter__()
        painter = painter_of(self._progress) if waiting else None
        if painter is not None:
            self._display = LiveDisplay(painter, run.snapshot)
            self._display.start()

    def output(self, text: str) -> None:
        """Shows it beside what is drawn."""
        if self._display is None:
            self._show(text)
            return
        with self._display.around(text):
            self._show(text)

    def closed(self) -> None:
        """Draws for the last time."""
        self._label.__exit__()
        if self._display is not None:
            self._display.stop()

    def html(self, run: ObservedRun) -> str:
        """The run as a page."""
        return _native.run_page(json.dumps(run.snapshot()))

    def show(self, run: ObservedRun, over: threading.Event) -> None:
        """Shows the run in a notebook's cell, drawn anew until it is `over`."""
        if not in_notebook():
            print(repr(run))
        elif over.is_set():
            NotebookPainter().paint(run.snapshot())
        else:
            display = LiveDisplay(lambda: NotebookPainter(run.cancel), run.snapshot, over)
            # The cell is over at once, and what comes after its end many a front end doesn't show.
            display.start(drawn=True)

    def figure(self, run: ObservedRun) -> Any:
        """The run as a figure."""
        from .figure import figure

        return figure(run.snapshot(), run.losses)
