"""The rank's end of the socket to its node: what it keeps, what it hears, and that it waits for nobody."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from phalanx import _native
from phalanx.rank import node_socket
from phalanx.rank.node_socket import NodeSocket
from support.node_end import NO_STEP, node_and_rank, notes_at, pair, reports_in, tell, tell_words
from support.one_rank import RankRun, sent

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, NodeSocket]]:
    node, rank = node_and_rank()
    with node:
        yield node, rank


def filled(rank: NodeSocket) -> int:
    """Fills the socket with beats; how many there was room for."""
    count = 0
    while rank.send({"beat": {}}):
        count += 1
    return count


def test_where_there_is_no_room_beats_are_lost_and_phases_are_kept_in_order(
    ends: tuple[socket.socket, NodeSocket],
) -> None:
    node, rank = ends
    beats = filled(rank)
    assert 0 < beats < 10_000, "RANK-13: nobody reads"
    for number in range(2 * node_socket.MAX_KEPT):
        assert not rank.send({"phase": str(number)}, keep=True)
    assert len(notes_at(node)) == beats
    told: list[str] = []
    while len(told) < node_socket.MAX_KEPT:
        told += [note["phase"] for note in notes_at(node) if "phase" in note]
        rank.wait(0.0)
    assert told == [str(number) for number in range(node_socket.MAX_KEPT)], "RANK-14"


def test_what_is_kept_goes_at_the_end_if_the_node_reads_and_is_waited_for_no_longer_than_said(
    ends: tuple[socket.socket, NodeSocket],
) -> None:
    node, rank = ends
    filled(rank)
    rank.send({"phase": "raised"}, keep=True)
    began = time.monotonic()
    rank.finish(0.3)
    assert 0.3 <= time.monotonic() - began < 20, "RANK-13"
    heard: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: heard.extend(notes_at(node)))
    reader.start()
    rank.finish(30.0)
    reader.join()
    assert {"phase": "raised"} in heard + notes_at(node), "RANK-14"


def test_of_each_kind_the_newest_news_are_there_once_and_what_is_no_news_is_passed_over(
    ends: tuple[socket.socket, NodeSocket],
) -> None:
    node, rank = ends
    assert rank.news() == {}
    tell(node, "profile", number=1)
    for packet in (b"[1]", b"null", b"{", b"\xff", b"{}", b'{"version": 1}', b'{"version": 1, "kind": []}'):
        node.send(packet)
    tell(node, "profile", version=2, number=9)
    tell(node, "of a later version")
    tell(node, "profile", number=2)
    news = rank.news()
    assert news["profile"]["number"] == 2, "RANK-16, TYPES-2"
    assert set(news) == {"profile", "of a later version"}
    assert rank.news() == {}
    tell(node, "profile", number=3)
    node.close()
    assert rank.news()["profile"]["number"] == 3
    assert rank.news() == {}
    rank.send({"phase": "nobody hears it"}, keep=True)
    began = time.monotonic()
    rank.wait(0.1)
    assert time.monotonic() - began >= 0.1, "a node that has gone wakes nobody"


def test_words_are_there_from_the_start_and_other_descriptors_are_closed() -> None:
    node, end = pair()
    words = tell_words(node, 7)
    tell(node, "profile", number=1)
    open_before = len(os.listdir("/proc/self/fd"))
    rank = NodeSocket(end.detach())
    assert rank.words is not None, "RANK-17"
    assert rank.words.generation == 7
    rank.words.report(120)
    assert list(words[:6]) == [1, 7, NO_STEP, 120, 0, 0], "RANK-17"
    with_words = len(os.listdir("/proc/self/fd"))
    assert with_words > open_before
    socket.send_fds(node, [b'{"version":1,"kind":"words"}', b""], [node.fileno()])
    socket.send_fds(node, [b'{"version":1,"kind":"later"}'], [node.fileno()] * 3)
    assert set(rank.news()) == {"profile", "later"}
    assert len(os.listdir("/proc/self/fd")) == with_words, "RANK-17"
    node.close()


def test_a_rank_that_is_frozen_may_begin_no_step_until_it_is_thawed() -> None:
    node, end = pair()
    with node:
        words = tell_words(node, 7)
        rank = NodeSocket(end.detach())
        assert rank.words is not None
        assert rank.words.ask(4)
        assert words[2] == 4
        words[4] = 1
        assert not rank.words.ask(5), "GUARD-3"
        assert words[2] == 5
        words[4] = 0
        assert rank.words.ask(5)
        with pytest.raises(_native.NativeError, match="No such file"):
            _native.RankWords("/nowhere")


def test_what_are_no_words_is_passed_over() -> None:
    node, rank = node_and_rank()
    with node, open(os.devnull) as file:
        socket.send_fds(node, [b'{"version":1,"kind":"words"}'], [file.fileno()])
        tell(node, "words")
        assert rank.news() == {}
        assert rank.words is None, "RANK-17"
        words = tell_words(node, 7)
        words[0] = 2
        assert rank.news() == {}
        assert rank.words is None, "RANK-17"


def test_what_a_rank_reports_is_in_its_memory_when_it_was_killed(run_rank: RunRank) -> None:
    words: list[memoryview] = []

    def train() -> None:
        import os
        import signal

        import phalanx

        for step in range(120):
            phalanx.report(step=step, of=200, loss=step / 2)
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_rank(sent(train), told=lambda node: words.append(tell_words(node, 7))).code == -9
    assert list(words[0][:6]) == [1, 7, NO_STEP, 119, 0, 0], "RANK-17"
    reports = reports_in(words[0])
    assert [(number, report["step"]) for number, report in reports] == [(n, n) for n in range(120)], "RANK-40"
    last = reports[-1][1]
    assert (last["of"], last["values"]) == (200, {"loss": 59.5})
    assert [report["at_ms"] for _, report in reports] == sorted(report["at_ms"] for _, report in reports)


def test_news_wake_who_waits(ends: tuple[socket.socket, NodeSocket]) -> None:
    node, rank = ends
    waiter = threading.Thread(target=rank.wait, args=(1000.0,), daemon=True)
    waiter.start()
    tell(node, "profile", number=1)
    waiter.join(30)
    assert not waiter.is_alive()


def test_a_number_that_another_file_has_is_left_alone(ends: tuple[socket.socket, NodeSocket]) -> None:
    _, rank = ends
    fd = rank._fd
    kept, reading, writing = os.dup(fd), *os.pipe()
    try:
        os.dup2(writing, fd)
        assert not rank.send({"phase": "a"}, keep=True), "RANK-15"
        assert rank.news() == {}
        assert not select.select([reading], [], [], 0)[0], "RANK-15"
    finally:
        for each in (kept, reading, writing):
            os.close(each)


def test_a_call_from_a_signals_handler_does_not_wait_for_the_call_that_it_interrupts(
    ends: tuple[socket.socket, NodeSocket],
) -> None:
    node, rank = ends
    assert rank._sending.acquire(False)
    began = time.monotonic()
    assert not rank.send({"phase": "from a handler"}, keep=True)
    assert time.monotonic() - began < 20, "RANK-13"
    rank._sending.release()
    rank.wait(0.0)
    assert notes_at(node) == [{"phase": "from a handler"}], "RANK-14"


def test_a_rank_takes_each_profile_once_and_at_once(run_rank: RunRank) -> None:
    def train() -> list[str]:
        import os
        import time

        from phalanx.rank import watchdog

        folder = os.environ["PHALANX_RANK_DIR"]
        while not os.path.exists(f"{folder}/profile-of-7"):
            time.sleep(0.01)
        # A second beat has passed: whatever else there was to begin has begun.
        time.sleep(2 * watchdog.BEAT_SECONDS)
        return sorted(name for name in os.listdir(folder) if name.startswith("profile-of-"))

    def told(node: socket.socket) -> None:
        tell(node, "of a later version", payload="x" * 3000)
        for number in (6, 7, 7):
            tell(node, "profile", number=number, millis=100)

    end = run_rank(sent(train), told=told)
    assert end.result == ["profile-of-7"], "RANK-35"


def test_a_rank_whose_node_reads_nothing_ends_in_time_and_has_lost_no_phase(run_rank: RunRank) -> None:
    def train() -> int:
        import phalanx

        for number in range(700):
            phalanx.phase(f"phase {number}")
        return 7

    end = run_rank(sent(train))
    assert end.result == 7
    phases = [name for name in end.notes if name.startswith("phase ")]
    # As many as its socket takes, in order: the fixture reads when the rank has ended.
    assert phases == [f"phase {number}" for number in range(len(phases))], "RANK-14"
    assert len(phases) > 100


def test_a_rank_without_a_socket_runs_as_ever(run_rank: RunRank, tmp_path: Path) -> None:
    def train(path: str) -> str:
        import os

        import phalanx

        fd = os.open(path, os.O_RDONLY)
        phalanx.phase("validation")
        phalanx.report(step=1)
        os.close(fd)
        return "done"

    (tmp_path / "file").touch()
    for fd in ("-1", "0", "2", "99"):
        assert run_rank(sent(train, str(tmp_path / "file")), PHALANX_NOTES_FD=fd).result == "done", "RANK-25"
