"""What observers of a run are told, and that none of them can hurt it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from phalanx import TrainingError
from phalanx.run.observer import Observer, Restart
from support.fake_run import FakeHub, fake_run

pytestmark = pytest.mark.timeout(60)


class Told(Observer):
    """Writes down what it is told, and where."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.threads: set[threading.Thread] = set()

    def _hear(self, *what: Any) -> None:
        self.heard.append(what)
        self.threads.add(threading.current_thread())

    def started(self, run: Any, *, waiting: bool) -> None:
        self.run = run
        self._hear("started", run.name, waiting)

    def phase(self, phase: Any) -> None:
        self._hear("phase", phase.name)

    def output(self, text: str) -> None:
        self._hear("output", text)

    def reported(self, rank: int, report: dict[str, Any]) -> None:
        self._hear("reported", rank, report)

    def every_report(self, rank: int, reports: Sequence[dict[str, Any]], left_out: int) -> None:
        self._hear("every_report", rank, list(reports), left_out)

    def restarted(self, restart: Restart) -> None:
        self._hear("restarted", restart)

    def over(self, error: BaseException | None) -> None:
        self._hear("over", type(error).__name__, self.run.done)

    def settled(self, error: BaseException | None) -> None:
        self._hear("settled", type(error).__name__, self.run.done)

    def closed(self) -> None:
        self._hear("closed", self.run.done)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    told: list[Any] = [
        ("output", "a line\n", ""),
        ("progress", '{"loss": 0.5}', '{"rank": 0, "step": 3}'),
        ("reports", '[{"step": 3, "at_ms": 9, "values": {}}]', '{"rank": 0, "left_out": 2}'),
        (
            "restarted",
            "2 ranks run again; 3.5 s lost",
            '{"attempt": 1, "kind": "resized", "ranks": 2, "seconds": 3.5, "steps": null}',
        ),
        ("finished", "", '{"ranks": []}'),
    ]
    monkeypatch.setattr(FakeHub, "next", lambda _hub, _seconds: told.pop(0))
    return told


def test_an_observer_is_told_what_happens_in_the_order_in_which_it_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, events: list[Any]
) -> None:
    told = Told()
    run = fake_run(monkeypatch, tmp_path, told)
    assert run.drive() is None
    assert told.heard == [
        ("started", "train", True),
        ("phase", "hub open"),
        ("output", "a line\n"),
        ("reported", 0, {"step": 3, "loss": 0.5}),
        ("every_report", 0, [{"step": 3, "at_ms": 9, "values": {}}], 2),
        ("restarted", Restart(attempt=1, kind="resized", ranks=2, seconds=3.5, steps=None)),
        ("phase", "returned"),
        ("over", "NoneType", False),
        ("settled", "NoneType", False),
        ("closed", True),
    ]
    assert told.threads == {threading.current_thread()}, "RUN-5"
    run.result(10)
    assert told.heard[-1] == ("settled", "NoneType", True), "who asks for the result is told it, too"


def test_an_observer_of_a_run_that_fails_is_told_by_what(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, events: list[Any]
) -> None:
    events[:] = [("failed", "the story", '{"ranks": [], "kind": "exception"}')]
    told = Told()
    run = fake_run(monkeypatch, tmp_path, told).start()
    with pytest.raises(TrainingError, match="the story"):
        run.result(60)
    assert ("started", "train", False) in told.heard
    assert ("over", "TrainingError", False) in told.heard


def test_an_observer_that_fails_is_logged_once_and_hurts_neither_the_run_nor_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, events: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Told):
        def _hear(self, *what: Any) -> None:
            raise OSError("the tracking server is gone")

    told = Told()
    with caplog.at_level(logging.WARNING, "phalanx"):
        assert fake_run(monkeypatch, tmp_path, Broken(), told).drive() is None
    assert len(told.heard) == 10, "RUN-17"
    said = [record.message for record in caplog.records]
    assert said == ["Broken failed (OSError: the tracking server is gone); the run goes on."], "RUN-17"


def test_an_interrupt_in_an_observer_ends_the_run_when_the_others_were_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, events: list[Any]
) -> None:
    class Interrupted(Observer):
        def output(self, text: str) -> None:
            raise KeyboardInterrupt

    told = Told()
    run = fake_run(monkeypatch, tmp_path, Interrupted(), told)
    with pytest.raises(KeyboardInterrupt):
        run.drive()
    assert ("output", "a line\n") in told.heard
    assert told.heard[-1][0] == "closed"
