"""How a snapshot of a run looks: as a line, as a page, as a figure; and that no display disturbs a run."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from phalanx import _native
from phalanx.display import live, painters
from phalanx.display import shown as shown_module
from phalanx.display.cancel_button import REASON
from phalanx.display.figure import figure
from phalanx.display.live import LiveDisplay
from phalanx.display.painters import FilePainter, TerminalPainter, painter_of
from support.fake_run import FakeHub, fake_run
from support.snapshots import snapshot

EVIL = '<script>alert("x")</script>&\x1b[31m\'"'


def test_a_cell_has_the_page_and_a_terminal_the_line_and_what_ranks_say_is_text_in_both() -> None:
    shown = snapshot(2, lines=[EVIL], name=EVIL)
    page, line = _native.run_page(json.dumps(shown)), _native.run_line(json.dumps(shown))
    assert "<script" not in page, "PAGE-1"
    assert page.count("&lt;script&gt;") == 2, "PAGE-1"
    assert "step 180 of 400, 2 steps/s, 1 min 50 s left" in page
    assert line.isprintable(), "PAGE-4"
    assert "step 180 of 400, 2 steps/s, 1 min 50 s left, loss 0.231, 2 ranks, 1 min 0 s" in line


def test_a_cell_of_a_thousand_ranks_is_small() -> None:
    page = _native.run_page(json.dumps(snapshot(1000, hosts=200)))
    assert len(page) < 20_000, "PAGE-2"
    assert "and 840 more ranks" in page, "PAGE-2"


def test_a_run_in_a_notebook_has_the_page_as_its_html(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    run = fake_run(monkeypatch, tmp_path)
    assert ">waiting</span>" in run._repr_html_()


def test_a_run_that_failed_before_its_hub_was_open_says_why_also_where_that_is_no_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise OSError("no file \udcff\nand more")

    run = fake_run(monkeypatch, tmp_path)
    monkeypatch.setattr(FakeHub, "__init__", refuse)
    with pytest.raises(OSError, match="no file"):
        run.drive()
    end = run.snapshot()
    assert (end["state"], end["failure"]["kind"], end["failure"]["cause"]) == ("failed", "start", "no file ?")
    assert end["ended"] >= end["started"]
    assert "no file ?" in run._repr_html_()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminals_line_makes_room_for_output_and_stays_out_of_unfinished_lines() -> None:
    terminal = Terminal()
    painter = TerminalPainter(terminal)
    painter.paint(snapshot(1))
    with painter.around("[rank 0] 10%"):
        assert terminal.getvalue().endswith(" \r"), "DISPLAY-8"
        terminal.write("[rank 0] 10%")
    painter.paint(snapshot(1))
    assert terminal.getvalue().endswith("[rank 0] 10%"), "DISPLAY-8"
    with painter.around("\n"):
        terminal.write("\n")
    painter.paint(snapshot(1))
    assert "train: training" in terminal.getvalue().rpartition("\n")[2]
    painter.end(snapshot(1))
    assert terminal.getvalue().endswith("\r"), "DISPLAY-8"


def test_what_is_no_terminal_gets_nothing_of_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    make = painter_of("auto")
    assert make is not None
    painter = make()
    assert isinstance(painter, FilePainter)
    assert painter.wait() >= 60, "DISPLAY-7"
    display = LiveDisplay(make, lambda: snapshot(1))
    display.start()
    display.stop()
    assert file.getvalue() == "", "DISPLAY-7"
    painter.paint(snapshot(1))
    assert file.getvalue().startswith("[phalanx] train: training")
    assert painter_of("off") is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance((painter_of("auto") or FilePainter)(), TerminalPainter)  # type: ignore[call-arg]


class Odd:
    """A painter that does as it is told."""

    def __init__(self, paint: Any) -> None:
        self.paint = paint
        self.end = paint

    def wait(self) -> float:
        return 0.0

    def around(self, _text: str) -> Any:
        return contextlib.nullcontext()


def test_a_display_that_raises_is_told_of_once_and_one_that_hangs_is_left_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_snapshot: Any) -> None:
        raise OSError("the front end is gone")

    with caplog.at_level(logging.WARNING, "phalanx"):
        for look in (lambda: snapshot(1), lambda: fail(None)):
            display = LiveDisplay(lambda: Odd(fail), look)  # type: ignore[arg-type]
            display.start()
            display.stop()
    said = "The run can't be drawn any more (OSError: the front end is gone); it goes on."
    assert [record.message for record in caplog.records] == [said, said], "DISPLAY-3"

    monkeypatch.setattr(live, "_END_S", 0.05)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(_snapshot: Any) -> None:
        hangs.set()
        goes_on.wait(60)

    display = LiveDisplay(lambda: Odd(hang), lambda: snapshot(1))
    display.start()
    thread = display._thread
    assert hangs.wait(60)
    display.stop()
    assert thread is not None
    assert thread.is_alive(), "DISPLAY-3: nobody waited for it"
    goes_on.set()
    thread.join(60)
    assert not thread.is_alive()


def test_a_run_that_a_cell_shows_is_drawn_before_the_cell_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    threads: list[threading.Thread] = []
    drawn_on = threading.Event()

    def paint(_snapshot: Any) -> None:
        threads.append(threading.current_thread())
        if len(threads) > 1:
            drawn_on.set()

    monkeypatch.setattr(shown_module, "in_notebook", lambda: True)
    monkeypatch.setattr(shown_module, "NotebookPainter", lambda _cancel: Odd(paint))
    run = fake_run(monkeypatch, tmp_path)
    run._ipython_display_()
    assert threads[0] is threading.current_thread()
    assert drawn_on.wait(60)
    run._over.set()
    assert threads[1] is not threads[0], "and then by a thread of its own"

    def fail(_snapshot: Any) -> None:
        raise OSError("the front end is gone")

    display = LiveDisplay(lambda: Odd(fail), lambda: snapshot(1))
    display.start(drawn=True)
    assert "OSError: the front end is gone" in caplog.text, "DISPLAY-3"
    display.stop()


def test_a_kernel_is_a_notebook_and_a_shell_on_a_terminal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    for shell, is_notebook in [(None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=1), True)]:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda it=shell: it))
        assert painters.in_notebook() is is_notebook


def test_a_figure_has_phases_losses_and_ranks_and_a_missing_matplotlib_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = figure(snapshot(4, name="$x$"), {})
    assert [axes.get_xlabel() for axes in drawn.axes] == ["seconds", "step", "rank"]
    assert drawn._repr_png_().startswith(b"\x89PNG")
    drawn = figure(snapshot(4), {0: [(1, 0.5), (2, 0.4)], 3: [(1, 0.6)]})
    losses = drawn.axes[1]
    assert [line.get_label() for line in losses.get_lines()] == ["rank 0", "rank 3"]
    assert [list(line.get_ydata()) for line in losses.get_lines()] == [[0.5, 0.4], [0.6]]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match="needs matplotlib: pip install matplotlib"):
        figure(snapshot(1), {})


class Widgets(ModuleType):
    """As much of ipywidgets as a button needs, and what became of it."""

    def __init__(self) -> None:
        super().__init__("ipywidgets")
        self.made: list[Any] = []

    def Button(self, **fields: Any) -> Any:
        button = SimpleNamespace(disabled=False, closed=False, **fields)
        button.on_click = lambda call: setattr(button, "press", lambda: call(button))
        button.close = lambda: setattr(button, "closed", True)
        self.made.append(button)
        return button


def test_a_run_in_a_cell_has_a_button_where_ipywidgets_is_and_else_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = []

    def display(what: Any, **_: Any) -> Any:
        shown.append(what)
        return SimpleNamespace(update=lambda bundle, **_: shown.append(bundle))

    screen = ModuleType("IPython.display")
    screen.display = display  # type: ignore[attr-defined]
    ipython = ModuleType("IPython")
    ipython.display = screen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", screen)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    reasons: list[str] = []
    going = snapshot(2) | {"ended": None}
    for cancel, told in [
        (reasons.append, "To end the run, call its cancel()."),
        (None, "To end the run, interrupt the kernel."),
    ]:
        painters.NotebookPainter(cancel).paint(going)
        assert told in shown[-1]["text/html"]
    assert told not in _native.run_page(json.dumps(going | {"ended": 1.0}), told)
    widgets = Widgets()
    monkeypatch.setitem(sys.modules, "ipywidgets", widgets)
    painters.NotebookPainter().paint(going)
    assert not widgets.made, "DISPLAY-1: the kernel would not hear of it"
    painter = painters.NotebookPainter(reasons.append)
    [button] = widgets.made
    painter.paint(going)
    assert "To end the run" not in shown[-1]["text/html"]
    button.press()
    assert (reasons, button.disabled) == ([REASON], True)
    painter.end(going)
    assert button.closed


def test_a_drawing_that_takes_long_is_made_less_often() -> None:
    assert [live.rest(0.5, took) for took in (0.0, 0.002, 0.04, 7.0)] == [0.5, 0.5, 2.0, live.MOST_REST_S], (
        "DISPLAY-4"
    )
    assert live.rest(60.0, 7.0) == 60.0, "DISPLAY-4: a file's line"
