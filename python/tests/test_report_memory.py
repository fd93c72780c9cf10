"""What a rank writes down of its reports, as whoever has the memory reads it."""

from __future__ import annotations

import json
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from phalanx.rank import reporting
from phalanx.rank.node_socket import NodeSocket
from phalanx.rank.pace import Pace
from phalanx.rank.report_memory import ReportMemory
from support.node_end import pair, reports_in, tell_words

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def memory() -> tuple[ReportMemory, memoryview]:
    node, end = pair()
    with node:
        words = tell_words(node, 7)
        rank = NodeSocket(end.detach())
    assert rank.words is not None
    return rank.words.reports, words


def report(**values: Any) -> bytes:
    return json.dumps(values).encode()


def test_a_flood_leaves_the_newest_reports_with_their_numbers(
    memory: tuple[ReportMemory, memoryview],
) -> None:
    reports, words = memory
    assert reports_in(words) == []
    for step in range(20_000):
        reports.put(report(step=step, text="ü" * (step % 40)))
    found = reports_in(words)
    assert [number for number, _ in found] == list(range(found[0][0], 20_000)), "RANK-40"
    assert all(number == told["step"] for number, told in found)
    assert len(found) > 5000


def test_reports_of_any_length_are_whole_and_one_that_fits_nowhere_is_passed_over(
    memory: tuple[ReportMemory, memoryview],
) -> None:
    reports, words = memory
    sizes = [0, 1, 7, 8, 9, 65_400, 65_480, 65_000]
    for size in sizes:
        reports.put(report(text="x" * size))
    assert [len(told["text"]) for _, told in reports_in(words)] == sizes
    reports.put(report(text="x" * 65_536))
    assert len(reports_in(words)) == len(sizes)


def test_threads_and_handlers_of_signals_report_beside_each_other(
    memory: tuple[ReportMemory, memoryview],
) -> None:
    reports, words = memory
    before = signal.signal(signal.SIGUSR1, lambda *_: reports.put(report(who="handler")))
    try:

        def many(who: int) -> None:
            for step in range(500):
                reports.put(report(who=who, step=step))
                if step % 50 == 0:
                    os.kill(os.getpid(), signal.SIGUSR1)

        threads = [threading.Thread(target=many, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        many(4)
        for thread in threads:
            thread.join(30)
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    told = [told for _, told in reports_in(words)]
    for who in range(5):
        assert [of["step"] for of in told if of["who"] == who] == list(range(500)), "RANK-41"
    assert any(of["who"] == "handler" for of in told), "RANK-41"


def test_the_pace_is_that_of_spans_of_half_a_second() -> None:
    pace = Pace()
    assert pace.reported(10, 100.0) == (None, None, False)
    assert pace.reported(11, 100.125) == (125_000, None, False), "RANK-42: of what there is"
    pace.waited(0.25)
    assert pace.reported(14, 100.5) == (125_000, 0.5, True), "RANK-42"
    pace.waited(0.5)
    assert pace.reported(15, 100.625) == (125_000, 0.5, False), "RANK-42: no single step"
    assert pace.reported(16, 101.5) == (500_000, 0.5, True)
    assert pace.reported(3, 102.5) == (None, None, True), "begun anew, as from a checkpoint"
    assert pace.reported(5, 103.0) == (250_000, 0.0, True)
    assert pace.reported(5, 104.0) == (250_000, 0.0, False), "a step that is told twice ends no span"
    assert pace.reported(7, 105.0) == (1_000_000, 0.0, True)
    assert pace.reported(8, 104.9) == (1_000_000, 0.0, False), "a clock that was read before the span began"
    first = Pace()
    first.reported(1, 9.0)
    assert first.reported(2, 8.0) == (0, None, False), "no time is negative"


def test_a_value_may_have_any_name(
    memory: tuple[ReportMemory, memoryview], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports, words = memory
    node = SimpleNamespace(words=SimpleNamespace(report=lambda step: None, reports=reports))
    monkeypatch.setattr(reporting, "_entered", reporting._Rank(node, "/nowhere"))  # type: ignore[arg-type]
    reporting.report(step=1, earlier=0.5, values=2)
    [(_, told)] = reports_in(words)
    assert told["values"] == {"earlier": 0.5, "values": 2.0}
