"""What training code is told of hosts that are to go, as whoever has the memory tells it."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from typing import Any

import pytest
from phalanx import Notice, Preempted, preempted
from phalanx.rank import contract
from phalanx.rank.node_socket import NodeSocket
from phalanx.rank.notices import MOST_FROZEN_SECONDS, Notices
from support.node_end import NO_STEP, pair, tell_words

pytestmark = pytest.mark.timeout(60)

# Which word is what.
ASKED, FROZEN, BYTES, LATE = 2, 4, 5, 7
AT = contract.WORDS_BYTES + contract.REPORTS_BYTES


class Rank:
    """A rank, and the words as its node has them."""

    def __init__(self) -> None:
        node, end = pair()
        with node:
            self.words = tell_words(node, 7)
            rank = NodeSocket(end.detach())
        assert rank.words is not None
        self._of_rank = rank.words
        self._notices = Notices(rank.words.fd)

    def at(self, step: int) -> Notice | None:
        return self._notices.at(step, self._of_rank)

    def tell(self, step: int, **told: Any) -> None:
        """As a node: writes a notice behind those before, and lets the rank go on."""
        notice = {
            "number": 1,
            "step": step,
            "hosts": ["far"],
            "ranks": [1],
            "deadline_ms": None,
            "reason": "spot",
        }
        line = json.dumps(notice | told).encode() + b"\n"
        end = self.words[BYTES]
        assert os.pwrite(self._of_rank.fd, line, AT + end) == len(line)
        self.words[BYTES] = end + len(line)
        self.words[FROZEN] = 0


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_it_is_none_below_a_step_and_the_same_notice_from_there_on(rank: Rank) -> None:
    assert rank.at(4) is None
    assert rank.words[ASKED] == 4
    rank.tell(6, deadline_ms=1_800_000_000_500)
    rank.tell(9, hosts=["far", "near"], ranks=[0, 1])
    first = Notice(("far",), (1,), 1_800_000_000.5, "spot")
    both = Notice(("far", "near"), (0, 1), None, "spot")
    assert [rank.at(step) for step in range(4, 12)] == [None, None, first, first, first, both, both, both], (
        "RANK-44"
    )
    fresh = Rank()
    fresh.tell(6)
    assert fresh.at(10) is not None, "RANK-44: also who asks for the first time"


def test_a_call_waits_for_the_choice_and_then_has_what_came_of_it(rank: Rank) -> None:
    rank.words[FROZEN] = 1
    node = threading.Timer(0.2, rank.tell, (5,))
    node.start()
    assert rank.at(5) == Notice(("far",), (1,), None, "spot"), "RANK-45"
    node.join()
    assert rank.words[LATE] == NO_STEP


def test_a_call_waits_for_a_second_at_most_and_its_node_knows_which_step_begins_then(rank: Rank) -> None:
    rank.words[FROZEN] = 1
    began = time.monotonic()
    assert rank.at(5) is None
    assert time.monotonic() - began >= MOST_FROZEN_SECONDS, "RANK-45"
    assert (rank.words[ASKED], rank.words[LATE]) == (5, 5), "GUARD-22"
    for step in range(6, 500):  # the next ones don't wait once more, which would take eight minutes
        assert rank.at(step) is None
    assert rank.words[LATE] == 499, "GUARD-22"
    rank.words[FROZEN] = 0
    assert rank.at(500) is None
    assert rank.words[LATE] == 499
    rank.tell(501)
    assert rank.at(501) is not None


def test_outside_a_rank_it_is_none_and_what_is_no_step_is_refused() -> None:
    assert preempted(7) is None
    for wrong, kind in ((1.5, TypeError), (True, TypeError), ("1", TypeError), (-1, ValueError)):
        with pytest.raises(kind, match="a step has to be"):
            preempted(wrong)  # type: ignore[arg-type]


def test_what_is_raised_says_which_host_and_why_and_can_be_pickled() -> None:
    notice = Notice(("near", "far"), (0, 1), None, "spot")
    raised = Preempted(41, notice)
    assert str(raised) == "left at step 41, since ranks on near, far are to go: spot"
    assert str(Preempted(3)) == "left at step 3"
    again = pickle.loads(pickle.dumps(raised))
    assert (again.step, again.notice) == (41, notice)
