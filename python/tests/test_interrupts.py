"""Ctrl-C while a run is driven: the first one at any moment, the second, and what the caller's own handler sees."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import phalanx._native
import pytest
from phalanx.run.interrupts import Interrupts
from phalanx.run.run import Run
from support.fake_run import FakeHub, FakeStage, fake_run

pytestmark = pytest.mark.timeout(60)
ASKED = "interrupted (Ctrl-C)"


@pytest.fixture(autouse=True)
def pythons_handler() -> Iterator[None]:
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell may have started the tests without
    yield
    assert signal.signal(signal.SIGINT, before) == signal.default_int_handler, "RUN-9"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    return fake_run(monkeypatch, tmp_path)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def once(what: Any, name: str, patch: pytest.MonkeyPatch, *, before: bool = True) -> None:
    """Has a Ctrl-C come when this is first called, before it does anything or after it has."""
    called = getattr(what, name)
    times = []

    def pressing(*args: Any, **options: Any) -> Any:
        times.append(1)
        if len(times) == 1 and before:
            press()
        result = called(*args, **options)
        if len(times) == 1 and not before:
            press()
        return result

    patch.setattr(what, name, pressing)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("moment", ["next", "output", "_take", "_phase", "start"])
def test_the_first_one_asks_for_the_end_at_any_moment(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    before: bool,
) -> None:
    where = {"next": FakeHub, "start": FakeStage, "output": run._face}.get(moment, run)
    once(where, moment, monkeypatch, before=before)
    with pytest.raises(KeyboardInterrupt):
        run.drive()
    assert FakeHub.last.calls == [ASKED, "cancelled", "joined", "closed"], "RUN-4"
    assert run.done


@pytest.mark.parametrize("when", ["started", "closed"])
def test_one_that_comes_while_an_observer_is_told_keeps_no_gpu(
    run: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    released: list[bool] = []
    monkeypatch.setattr(run._lease, "release", lambda: released.append(True))
    once(run._face, when, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run.drive()
    assert released == [True], "RUN-4"
    assert run.done


def test_one_that_comes_before_the_hub_is_open_ends_the_job_as_it_begins(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once(phalanx._native, "Hub", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run.drive()
    assert FakeHub.last.calls == [ASKED, "cancelled", "joined", "closed"], "RUN-4"


def test_one_that_comes_while_output_is_written_cuts_off_no_line(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = []

    class Slow:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            press()
            written.append(text)
            return len(text)

        def flush(self) -> None:
            written.append("flushed")

    monkeypatch.setattr(sys, "stdout", Slow())
    with pytest.raises(KeyboardInterrupt):
        run.drive()
    assert written == ["a line\n", "flushed"], "RUN-4"


def test_the_second_one_does_not_wait(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def goes_on(_hub: Any, _seconds: float) -> Any:
        press()
        return ("output", "a line\n", "")

    monkeypatch.setattr(FakeHub, "next", goes_on)
    with pytest.raises(KeyboardInterrupt):
        run.drive()
    assert FakeHub.last.calls == [ASKED, "cancelled", "closed"], "RUN-8"


def test_one_that_comes_when_the_ranks_are_over_does_not_wait_for_spark(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once(FakeStage, "join", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run.drive()
    assert FakeHub.last.calls == ["cancelled", "closed"]


def test_an_interrupt_that_is_no_signal_counts_too(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(_text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run._face, "_show", show)
    with pytest.raises(KeyboardInterrupt):
        run.drive()
    assert FakeHub.last.calls == [ASKED, "cancelled", "joined", "closed"]


@pytest.mark.parametrize("raises", [True, False])
def test_the_callers_own_handler_is_called_each_time(raises: bool) -> None:
    seen: list[Any] = []

    def own(number: int, _frame: Any) -> None:
        seen.append(number)
        if raises:  # as pyspark's does
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, own)
    try:
        with Interrupts(lambda: seen.append("asked")) as interrupts:
            press()
            assert (seen, interrupts.pressed) == (["asked", 2], True), "RUN-9"
            if raises:
                with pytest.raises(KeyboardInterrupt):
                    press()
            else:
                press()
            assert seen == ["asked", 2, 2]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("how", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_process_that_leaves_it_to_the_system_goes_on_doing_so(how: Any) -> None:
    before = signal.signal(signal.SIGINT, how)
    try:
        with Interrupts(lambda: None):
            assert signal.getsignal(signal.SIGINT) == how
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_takes_none() -> None:
    def other() -> None:
        with Interrupts(lambda: None):
            assert signal.getsignal(signal.SIGINT) == signal.default_int_handler

    problems: list[BaseException] = []

    def caught(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=caught, args=(other,))
    thread.start()
    thread.join()
    assert not problems
