"""Fetched blocks of ranks that share a folder: each is fetched once, and nobody waits for one who is stuck."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from phalanx.feeding.blocks import shared as shared_blocks
from phalanx.feeding.blocks.far import FarBlocks
from phalanx.feeding.blocks.index import Block, Facts, Index

pytestmark = pytest.mark.timeout(120)

COUNT, SIZE = 12, 1000


class Elsewhere:
    """What has the blocks; says who fetched what."""

    def __init__(self, changes: bool = False) -> None:
        self.fetched: list[int] = []
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()
        self.changes = changes

    def fetch(self, host: str, file: str, start: int, length: int, into: str) -> None:
        self.is_asked.set()
        assert self.may_go_on.wait(60)
        self.fetched.append(start // SIZE)
        Path(into).write_bytes(bytes([start // SIZE + self.changes]) * length)


@pytest.fixture
def index() -> Index:
    blocks = [Block(0, at * SIZE, SIZE, 1, zlib.crc32(bytes([at]) * SIZE)) for at in range(COUNT)]
    return Index("train", ["elsewhere"], ["/there/0-0"], blocks, Facts({}, {}), False)


class Ranks:
    """Ranks that share a folder."""

    def __init__(self, index: Index, tmp_path: Path) -> None:
        self.index, self.own, self.shared = index, tmp_path / "own", tmp_path / "shared"
        self.own.mkdir()
        self.shared.mkdir()
        self.there = Elsewhere()
        self.all: list[FarBlocks] = []

    def one(self, there: Any = None) -> FarBlocks:
        self.all.append(FarBlocks(self.index, there or self.there, str(self.own), str(self.shared)))
        return self.all[-1]

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.shared) if name.startswith("block-"))


@pytest.fixture
def ranks(index: Index, tmp_path: Path) -> Any:
    made = Ranks(index, tmp_path)
    yield made
    made.there.may_go_on.set()
    for rank in made.all:
        rank.close()


def read_all(rank: FarBlocks) -> None:
    for at in range(COUNT):
        rank.ahead(range(at, COUNT))
        assert bytes(rank.get(at)) == bytes([at]) * SIZE


def test_ranks_that_read_at_the_same_time_fetch_each_block_once(ranks: Ranks) -> None:
    readers = [threading.Thread(target=read_all, args=(ranks.one(),)) for _ in range(6)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    assert sorted(ranks.there.fetched) == list(range(COUNT))
    assert len(ranks.names()) == COUNT
    assert os.listdir(ranks.own) == [], "FEED-17"


def test_while_one_fetches_a_block_the_others_fetch_the_next(ranks: Ranks) -> None:
    slow, quick = ranks.one(), Elsewhere()
    ranks.there.may_go_on.clear()
    slow.ahead([0])
    assert ranks.there.is_asked.wait(60)
    other = ranks.one(quick)
    other.ahead(range(COUNT))
    assert bytes(other.get(5)) == bytes([5]) * SIZE, "though block 0 is the first that it wants"
    assert 0 not in quick.fetched
    ranks.there.may_go_on.set()
    assert bytes(other.get(0)) == bytes(SIZE)
    assert 0 not in quick.fetched, "it came by the other"


def test_names_are_bounded_and_what_a_rank_has_it_keeps(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_blocks, "SHARED_BYTES", 3 * SIZE)
    rank = ranks.one()
    first = rank.get(0)
    for at in range(COUNT):
        rank.get(at)
        assert len(ranks.names()) <= 3, "FEED-41"
    assert bytes(first) == bytes(SIZE)


def test_bytes_that_were_changed_get_no_name(ranks: Ranks) -> None:
    with pytest.raises(RuntimeError, match="came from elsewhere with other bytes than were written"):
        ranks.one(Elsewhere(changes=True)).get(3)
    assert ranks.names() == [], "FEED-40"
    assert bytes(ranks.one().get(3)) == bytes([3]) * SIZE


def test_a_name_of_too_few_bytes_is_fetched_again(ranks: Ranks) -> None:
    ranks.one().get(3)
    [name] = ranks.names()
    os.truncate(ranks.shared / name, SIZE // 2)
    assert bytes(ranks.one().get(3)) == bytes([3]) * SIZE
    assert ranks.there.fetched == [3, 3]


def holder(ranks: Ranks, block: int) -> subprocess.Popen[bytes]:
    """A process that has the turn for a block, and does nothing with it."""
    program = (
        "import fcntl, os, sys, time\n"
        "lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print(flush=True)\n"
        "time.sleep(120)\n"
    )
    turn = ranks.shared / f"turn-{block}"
    process = subprocess.Popen([sys.executable, "-c", program, str(turn)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


def test_a_rank_that_is_killed_while_it_fetches_leaves_the_turn_to_the_others(ranks: Ranks) -> None:
    with holder(ranks, 4) as process:
        rank, got = ranks.one(), []
        reader = threading.Thread(target=lambda: got.append(bytes(rank.get(4))))
        reader.start()
        reader.join(0.2)
        assert reader.is_alive(), "it is another's turn"
        process.send_signal(signal.SIGKILL)
        reader.join(60)
    assert got == [bytes([4]) * SIZE]


def test_nobody_waits_for_ever_for_a_rank_that_stands_still(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_blocks, "TURN_S", 0.2)
    with holder(ranks, 4) as process:
        assert bytes(ranks.one().get(4)) == bytes([4]) * SIZE, "FEED-42"
        process.kill()


def test_a_rank_that_waits_for_anothers_turn_ends_with_its_source(ranks: Ranks) -> None:
    before = set(threading.enumerate())
    with holder(ranks, 4) as process:
        rank = ranks.one()
        rank.ahead([4])
        rank.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(60)
            assert not thread.is_alive()
        process.kill()


@pytest.mark.parametrize("trouble", ["no folder", "no locks"])
def test_without_a_folder_or_locks_each_fetches_for_itself(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def refused(*_: Any) -> None:
        raise OSError("no locks here")

    if trouble == "no folder":
        shutil.rmtree(ranks.shared)
    else:
        monkeypatch.setattr(shared_blocks.fcntl, "flock", refused)
    read_all(ranks.one())
    assert sorted(ranks.there.fetched) == list(range(COUNT))
