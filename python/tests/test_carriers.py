"""When rounds of carriers are started, and that none outlives the run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from phalanx.feeding.blocks import carriers
from phalanx.feeding.blocks.carriers import Carriers
from support.programs import eventually

pytestmark = pytest.mark.timeout(60)


class Rounds:
    """Jobs that last until they are cancelled, or all hosts of a round have a carrier."""

    def __init__(self) -> None:
        self.begun: list[tuple[bytes, int, Sequence[str], int]] = []
        self.ended = 0
        self.over = threading.Event()
        self.cancels = 0

    def carry(self, spec: bytes, first: int, wanted: Sequence[str], tasks: int) -> None:
        self.begun.append((spec, first, wanted, tasks))
        self.over.wait(30)
        self.ended += 1

    def of(self, spec: bytes) -> int:
        """How many rounds were told this."""
        return sum(told == spec for told, *_ in self.begun)

    def cancel(self) -> None:
        self.cancels += 1
        self.over.set()


def threads() -> int:
    return sum(thread.name == "phalanx-carry" for thread in threading.enumerate())


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    monkeypatch.setattr(carriers, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(carriers, "_END_S", 0.2)
    return Rounds()


@pytest.fixture(params=[False])
def made(rounds: Rounds, request: pytest.FixtureRequest) -> Iterator[Carriers]:
    """Carriers of six tasks a round; the parameter says whether each is a job of its own."""

    def inherit(target: Callable[..., None]) -> Callable[..., None]:
        return target

    jobs = cast(Any, SimpleNamespace(carry=rounds.carry))
    one = Carriers(jobs, inherit, tasks=lambda: 6, apart=lambda: request.param, cancel=rounds.cancel)
    yield one
    one.close()
    assert rounds.ended == len(rounds.begun), "FEED-9"


def test_where_all_hosts_have_nodes_nothing_is_started(made: Carriers, rounds: Rounds) -> None:
    made.placed(0, [], lambda: b"never asked for")
    made.close()
    assert rounds.begun == [], "FEED-7"


def test_rounds_go_on_until_each_host_has_a_carrier(made: Carriers, rounds: Rounds) -> None:
    made.placed(0, ["b", "a"], lambda: b"spec")
    made.carried(0, "a")
    eventually("FEED-8", 10, lambda: len(rounds.begun) >= 3)
    made.carried(0, "b")
    eventually("FEED-7: who begins rounds has ended", 10, lambda: threads() == len(rounds.begun))
    made.close()
    for number, begun in enumerate(rounds.begun):
        assert begun == (b"spec", 6 * number, ["a", "b"], 6), "no two carriers have one number"


@pytest.mark.parametrize("made", [True], indirect=True)
def test_where_spark_speculates_each_task_is_a_job_of_its_own(
    made: Carriers, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers, "FIRST_WAIT_S", 30.0)
    made.placed(0, ["a"], lambda: b"spec")
    eventually("a round", 10, lambda: len(rounds.begun) == 6)
    assert sorted(rounds.begun) == [(b"spec", number, ["a"], 1) for number in range(6)], "FEED-10"


def test_what_an_earlier_attempt_tells_does_not_count_and_each_attempt_has_rounds_of_its_own(
    made: Carriers, rounds: Rounds
) -> None:
    made.placed(0, ["a"], lambda: b"first")
    made.carried(0, "a")
    made.placed(1, ["a"], lambda: b"second")
    made.carried(0, "a")
    eventually("rounds of the second attempt", 10, lambda: rounds.of(b"second") > 1)
    assert rounds.of(b"first") <= 1


def test_a_host_that_gets_none_is_told_of_once(
    made: Carriers, rounds: Rounds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(carriers, "_TELL_AFTER_S", 0.1)
    with caplog.at_level(logging.WARNING, logger="phalanx"):
        made.placed(0, ["a", "b"], lambda: b"spec")
        made.carried(0, "b")
        eventually("some rounds", 10, lambda: len(rounds.begun) > 3)
    assert [record.getMessage() for record in caplog.records] == [
        "Spark has started no task on a to serve the blocks there: are all slots there taken?"
    ]


def test_a_session_that_is_gone_ends_the_search_in_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    def gone() -> bool:
        raise RuntimeError("the session was stopped")

    one = Carriers(cast(Any, None), lambda target: target, tasks=lambda: 6, apart=gone, cancel=lambda: None)
    with caplog.at_level(logging.WARNING, logger="phalanx"):
        one.placed(0, ["a"], lambda: b"spec")
        eventually("the search is over", 10, lambda: not threads())
    one.close()
    said = "Tasks that serve blocks have ended: the session was stopped"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_jobs_that_do_not_end_by_themselves_are_cancelled_and_none_begins_after_the_end(
    made: Carriers, rounds: Rounds
) -> None:
    made.placed(0, ["a"], lambda: b"spec")
    eventually("a round", 10, lambda: rounds.begun)
    made.close()
    assert rounds.cancels == 1, "FEED-9"
    begun = len(rounds.begun)
    made.placed(1, ["a"], lambda: b"late")
    assert len(rounds.begun) == begun == rounds.ended
