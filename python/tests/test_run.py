"""What ranks tell while they run, as the caller sees it, and who shows it."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phalanx import _native
from phalanx.display.label import Label
from phalanx.display.live_output import LiveOutput
from phalanx.errors import RankOutcome
from phalanx.run.events import (
    EveryReport,
    Outcome,
    Output,
    PhaseReached,
    Reported,
    Restarted,
    Resubmit,
    SeatTaken,
    SeatWanted,
    Status,
    event_of,
)
from phalanx.run.observer import Restart
from phalanx.run.run import Stacks
from phalanx.stages.stage import Stage
from support.fake_run import FakeHub, fake_run, request_of
from support.places import CONTRACT

TABLE: dict[str, list[dict[str, Any]]] = json.loads((CONTRACT / "output.json").read_text())


def test_stacks_print_as_groups_and_are_a_dictionary() -> None:
    stacks = Stacks({0: "a", 1: "a"}, "ranks 0-1:\n  a\n")
    assert (stacks[1], str(stacks)) == ("a", "ranks 0-1:\n  a\n")


def test_every_event_of_the_core_is_read() -> None:
    outcome = {"rank": 0, "host": "h", "state": "finished", "idle_seconds": None, "doing": ""}
    failure = {"kind": "exit_code", "rank": 0, "ranks": [outcome]}
    ranks = [RankOutcome(0, "h", "finished", None)]
    for packed, event in [
        (("output", "[rank 0] a\n", ""), Output("[rank 0] a\n")),
        (("phase", "user code", '{"rank": 1, "seconds": 1.5}'), PhaseReached("user code", 1, 1.5)),
        (("phase", "all joined", '{"rank": null, "seconds": 1}'), PhaseReached("all joined", None, 1)),
        (("status", "training", ""), Status("training")),
        (
            (
                "restarted",
                "3 ranks run again; 14 steps and 3.5 s lost",
                '{"attempt": 2, "kind": "resized", "ranks": 3, "seconds": 3.5, "steps": 14}',
            ),
            Restarted(Restart(attempt=2, kind="resized", ranks=3, seconds=3.5, steps=14)),
        ),
        (
            ("progress", '{"loss": 0.5}', '{"rank": 2, "step": 3}'),
            Reported(2, {"step": 3, "loss": 0.5}),
        ),
        (("progress", "", '{"rank": 2, "step": 0}'), Reported(2, {"step": 0})),
        (
            (
                "reports",
                '[{"step": 3, "at_ms": 1000, "values": {"loss": 0.5}}]',
                '{"rank": 2, "left_out": 4}',
            ),
            EveryReport(2, [{"step": 3, "at_ms": 1000, "values": {"loss": 0.5}}], 4),
        ),
        (("resubmit", "", '{"attempt": 1}'), Resubmit(1)),
        (("seat_wanted", "", '{"attempt": 1, "partition": 2}'), SeatWanted(1, 2)),
        (("seat_taken", "", '{"attempt": 1, "partition": 2, "stage": 7}'), SeatTaken(1, 2, 7)),
        (("finished", "", json.dumps({"ranks": [outcome]})), Outcome(ranks, None, "")),
        (("failed", "the story", json.dumps(failure)), Outcome(ranks, failure, "the story")),
    ]:
        assert event_of(packed) == event, "DRIVER-1"
    with pytest.raises(ValueError, match="an unknown event: news"):
        event_of(("news", "", ""))


def test_output_is_shown_by_the_thread_that_drives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, shown = fake_run(monkeypatch, tmp_path), []

    def show(text: str) -> None:
        shown.append((text, threading.current_thread()))

    monkeypatch.setattr(run._face, "_show", show)
    assert run.drive() is None
    assert shown == [("a line\n", threading.current_thread())], "RUN-5"
    assert (run.status, run.done) == ("over", True)
    assert FakeHub.last.calls == ["joined", "closed"], "RUN-6: the stage is over, the hub closed"


def test_a_run_that_is_over_keeps_nothing_of_what_was_sent() -> None:
    class Failing(Stage):
        def _run(self, _hub: Any, _attempt: int) -> None:
            copy = self._request.payload.packed
            raise RuntimeError(f"{len(copy)} bytes")

    class Sent(bytearray): ...

    payload = Sent(b"a model")
    job = _native.Job(name="train", ranks=1, tasks=1, use_gpu=False, settings={})
    request = request_of(job, payload=payload)  # bytes to which a weak reference can be made
    request.variables["TOKEN"] = "hidden"
    stage, sent = Failing(request), weakref.ref(payload)
    stage.start(SimpleNamespace(stage_ended=lambda *_: None))  # type: ignore[arg-type]
    assert stage.join(10)
    del payload
    assert sent() is not None
    request.forget()
    stage.forget()
    assert sent() is None, "REQUEST-5"
    assert request.variables == {}, "REQUEST-5"
    assert str(stage.error) == "7 bytes"


def test_a_broken_view_is_told_once_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def write(self, _text: str) -> int:
            raise OSError(107, "Transport endpoint is not connected")

    show = LiveOutput(Label("train"))
    with caplog.at_level(logging.WARNING, "phalanx"), monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Broken())
        show("one\n")
        show("two\n")
    assert [record.message[:40] for record in caplog.records] == [
        "The ranks' output can't be shown any mor"
    ], "RUN-7"


@pytest.fixture
def no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.display.label._running", set())


@pytest.mark.usefixtures("no_other_run")
def test_runs_at_once_have_labels_that_differ() -> None:
    for case in TABLE["labels"]:
        with contextlib.ExitStack() as stack:
            running: dict[str, Label] = {}
            labels = []
            for name in case["runs"]:
                if name.startswith("-"):
                    running.pop(name[1:]).__exit__(None, None, None)
                    continue
                label = stack.enter_context(Label(name))
                running[label.text] = label
                labels.append(label.text)
            assert labels == case["labels"], "DISPLAY-9"


@pytest.mark.usefixtures("no_other_run")
def test_lines_have_the_runs_label_while_another_one_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for case in TABLE["lines"]:
        with Label(case["label"]) as label:
            show = LiveOutput(label)
            with Label("another"):
                show(case["text"])
            assert capsys.readouterr().out == case["among"], "DISPLAY-9"
            show(case["text"])
        assert capsys.readouterr().out == case["text"], "DISPLAY-9: it is the only one now"
