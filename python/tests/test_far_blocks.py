"""Blocks of other hosts in a rank: fetched ahead, within bounds, and whole. The other host is a folder here; servers
and their connections are those of rust/rendezvous/tests/blocks.rs and tests/hosts/test_hosts.py."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from phalanx.feeding.blocks import far as far_blocks
from phalanx.feeding.blocks import source as block_source
from phalanx.feeding.blocks.index import Block, Facts, Index
from phalanx.feeding.blocks.source import LostBlocks, MappedBlocks
from phalanx.feeding.blocks.write import write_partition
from phalanx.feeding.source import DataSet
from phalanx.rank.error_record import is_peer_loss
from support.programs import eventually

pa = pytest.importorskip("pyarrow")
pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

FILES, BLOCKS, ROWS = 4, 6, 10


class Elsewhere:
    """A host whose files are in another folder; counts what is fetched of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: list[tuple[str, int]] = []
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()
        self.changes = False

    def __call__(self, _access: bytes) -> Elsewhere:
        return self

    def fetch(self, host: str, file: str, start: int, length: int, into: str) -> None:
        assert host == "elsewhere"
        self.is_asked.set()
        assert self.may_go_on.wait(60)
        data = bytearray((self.folder / Path(file).name).read_bytes()[start : start + length])
        if self.changes:
            data[length // 2] ^= 1
        Path(into).write_bytes(data)
        self.fetched.append((Path(file).name, start))


class World:
    """Files with blocks, every second of which is elsewhere."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.far, self.near, self.rank = tmp_path / "far", tmp_path / "near", tmp_path / "rank"
        self.rank.mkdir()
        blocks, files, hosts = [], [], []
        for number in range(FILES):
            is_far = number % 2 == 1
            batch = pa.RecordBatch.from_pydict(
                {"i": pa.array(range(number * BLOCKS * ROWS, (number + 1) * BLOCKS * ROWS), pa.int64())}
            )
            path = str((self.far if is_far else self.near) / f"{number}-0")
            found = write_partition([batch], path, 1 << 20, ROWS)
            files.append(str(self.near / f"{number}-0"))
            hosts.append("elsewhere" if is_far else "here")
            blocks += [Block(number, b["start"], b["bytes"], b["rows"], b["checksum"]) for b in found]
        self.index = Index("train", hosts, files, blocks, Facts({}, {}), False)
        self.there = Elsewhere(self.far)
        monkeypatch.setattr(block_source._native, "BlockClient", self.there)

    def source(self) -> MappedBlocks:
        return MappedBlocks(self.index, b"access", str(self.rank))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_every_row_comes_once_from_here_and_elsewhere_and_leaves_no_file(world: World, shuffle: Any) -> None:
    loaders = [
        DataSet(world.source()).loader(batch_size=7, shuffle=shuffle, uneven="pad", rank=rank, world_size=2)
        for rank in range(2)
    ]
    for _ in range(2):
        rows = [i for loader in loaders for b in loader for i in b["i"][b["mask"]].tolist()]
        assert sorted(rows) == list(range(FILES * BLOCKS * ROWS))
    assert len(world.there.fetched) == len(set(world.there.fetched)) * 2, "each rank has each block once"
    assert list(world.rank.iterdir()) == [], "FEED-17"


def test_blocks_are_fetched_ahead_in_the_order_of_need_and_an_urgent_one_first(world: World) -> None:
    source = world.source()
    far = [at for at, block in enumerate(world.index.blocks) if block.file % 2]
    world.there.may_go_on.clear()
    source.ahead(far[:4])
    assert world.there.is_asked.wait(60)
    late: list[Any] = []
    reader = threading.Thread(target=lambda: late.append(source.batch(far[8])))
    reader.start()
    eventually("it is urgent", 60, lambda: source._far is not None and source._far._urgent == far[8])
    world.there.may_go_on.set()
    reader.join(60)
    eventually("all are there", 60, lambda: len(world.there.fetched) == 5)
    number = {(Path(world.index.files[b.file]).name, b.start): at for at, b in enumerate(world.index.blocks)}
    assert [number[fetched] for fetched in world.there.fetched] == [far[0], far[8], *far[1:4]], "FEED-18"
    assert late[0].column(0)[0].as_py() == far[8] * ROWS


def test_what_is_kept_is_bounded_and_comes_again_when_it_is_needed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_block = world.index.blocks[0].bytes
    monkeypatch.setattr(far_blocks, "CACHE_BYTES", 3 * a_block)
    source = world.source()
    far = [at for at, block in enumerate(world.index.blocks) if block.file % 2]
    for _ in range(2):
        for at in far:
            source.ahead(far)
            assert source.batch(at).column(0)[0].as_py() == at * ROWS
            assert source._far is not None
            assert sum(map(len, source._far._there.values())) <= 3 * a_block, "FEED-17"
    monkeypatch.setattr("phalanx.feeding.loader.loader.CACHE_BYTES", 3 * a_block)
    with pytest.raises(
        ValueError, match=r'shuffle="full" reads all blocks at each step, and .* on other hosts'
    ):
        DataSet(source).loader(batch_size=2, shuffle="full")


def test_bytes_that_were_changed_and_blocks_that_are_gone_are_named(world: World) -> None:
    world.there.changes = True
    far = BLOCKS + 2
    said = rf"block {far} of the data set 'train' came from elsewhere with other bytes than .*1-0 there"
    with pytest.raises(RuntimeError, match=said):
        world.source().batch(far)  # FEED-19
    world.there.changes = False
    (world.far / "1-0").unlink()
    with pytest.raises(  # FEED-74
        LostBlocks, match=r"'train' in .*1-0 on elsewhere can't be read: .*start the run again"
    ):
        world.source().batch(far)


def test_an_error_of_the_other_host_is_raised_where_the_block_is_needed_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx import _native

    fetch, lost = world.there.fetch, _native.NativeError("the node on elsewhere can't be reached")
    lost.kind = "peer_lost"

    tries = []

    def fails(*request: Any) -> None:
        tries.append(request)
        raise lost

    monkeypatch.setattr(far_blocks, "AGAIN_AFTER_S", 0.01)
    source = world.source()
    monkeypatch.setattr(world.there, "fetch", fails)
    source.ahead([BLOCKS, BLOCKS + 1])
    assert source.batch(0).num_rows == ROWS, "what is here is read"
    with pytest.raises(RuntimeError, match="on elsewhere can't be reached") as caught:
        source.batch(BLOCKS)
    assert is_peer_loss(caught.value), "FEED-20"
    assert len(tries) >= 2, "a connection that broke is tried again"
    monkeypatch.setattr(world.there, "fetch", fetch)
    assert source.batch(BLOCKS).num_rows == ROWS


def test_who_waits_for_a_block_when_its_source_is_closed_is_told(world: World) -> None:
    world.there.may_go_on.clear()
    source, told = world.source(), []

    def read() -> None:
        with pytest.raises(RuntimeError, match="is closed"):
            source.batch(BLOCKS)
        told.append(True)

    reader = threading.Thread(target=read)
    reader.start()
    assert world.there.is_asked.wait(60)
    assert source._far is not None
    source._far.close()  # FEED-20
    reader.join(60)
    assert told
    world.there.may_go_on.set()


def test_a_fork_a_copy_and_the_end_of_a_source_leave_no_thread(world: World) -> None:
    before = set(threading.enumerate())
    source = world.source()
    source.batch(BLOCKS)
    child = os.fork()
    if child == 0:
        os._exit(0 if source.batch(BLOCKS + 1).num_rows == ROWS else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pickle.loads(pickle.dumps(source)).batch(BLOCKS) == source.batch(BLOCKS)
    del source
    eventually("the threads end", 60, lambda: set(threading.enumerate()) <= before)
