"""Blocks in files: what is written, what is read back, and what can't be. No Spark."""

from __future__ import annotations

import json
import pickle
import socket
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from phalanx.feeding.blocks import source as block_source
from phalanx.feeding.blocks.index import Block, Facts, Index, fingerprint
from phalanx.feeding.blocks.source import MappedBlocks
from phalanx.feeding.blocks.write import ALIGNMENT, regrouped, write_partition
from phalanx.rank.payload import Payload
from phalanx.request.payload import function_payload, with_data

pytestmark = pytest.mark.timeout(60)


def batch(rows: int, start: int = 0) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    return pa.RecordBatch.from_pydict(
        {
            "x": pa.array(map(float, numbers), pa.float32()),
            "s": pa.array([None if i % 5 == 0 else "a" * (i % 7) for i in numbers], pa.string()),
            "a": pa.array([[i] * (i % 3) for i in numbers], pa.list_(pa.int64())),
        }
    )


def rows_of(batches: Any) -> list[Any]:
    return [row for one in batches for row in one.to_pylist()]


def written(folder: Path, batches: list[pa.RecordBatch], **bounds: int) -> Index:
    path = str(folder / "run" / "0-0")
    blocks = write_partition(batches, path, bounds.get("size", 1 << 20), bounds.get("rows", 1 << 20))
    return Index(
        name="train",
        hosts=[socket.gethostname()] if blocks else [],
        files=[path] if blocks else [],
        blocks=[Block(0, *(block[of] for of in ("start", "bytes", "rows", "checksum"))) for block in blocks],
        facts=Facts.together(json.loads(block["facts"]) for block in blocks),
        whole=False,
    )


def test_blocks_have_the_rows_in_their_order_and_are_bounded() -> None:
    batches = [batch(10), batch(0), batch(25, 10), batch(1, 35)]
    for bounds in [(1 << 20, 8), (300, 1 << 20), (1, 1 << 20), (1 << 20, 1 << 20)]:
        blocks = list(regrouped(batches, *bounds))
        assert rows_of(blocks) == rows_of(batches), "FEED-59"
        assert {block.schema for block in blocks} == {batches[0].schema}, "FEED-59"
        assert max(block.num_rows for block in blocks) <= bounds[1], "FEED-60"
        # Bits and offsets take a few bytes more in a block than in a slice.
        assert all(block.nbytes <= bounds[0] + 128 or block.num_rows == 1 for block in blocks), "FEED-60"
    assert [block.num_rows for block in regrouped(batches, 1 << 20, 8)] == [8, 8, 8, 8, 4]
    assert list(regrouped([], 1, 1)) == []


def test_what_is_written_is_read_back_from_a_private_folder(tmp_path: Path) -> None:
    batches = [batch(20), batch(7, 20)]
    index = written(tmp_path, batches, rows=6)
    folder = tmp_path / "run"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "FEED-61"
    index = Index.read(json.loads(json.dumps(index.pack())))
    source = MappedBlocks(index)
    assert rows_of(map(source.batch, range(len(index.blocks)))) == rows_of(batches), "FEED-59"
    assert {block.start % ALIGNMENT for block in index.blocks} == {0}
    assert source.batch(1).column(0).buffers()[1].address % 8 == 0
    assert index.facts.nulls == {"s": 6}
    assert index.facts.lengths == {"a": [[0, 2]]}
    # Nothing that is mapped travels to another process.
    assert pickle.loads(pickle.dumps(source)).batch(0) == source.batch(0)


def test_a_task_that_fails_leaves_no_file_and_one_without_rows_makes_none(tmp_path: Path) -> None:
    def broken() -> Any:
        yield batch(10)
        raise RuntimeError("the stage before")

    with pytest.raises(RuntimeError, match="the stage before"):
        write_partition(broken(), str(tmp_path / "run" / "0-0"), 1 << 20, 3)
    assert list((tmp_path / "run").iterdir()) == [], "FEED-61"
    assert written(tmp_path / "other", [batch(0)]).files == []
    assert not (tmp_path / "other").exists()


def test_blocks_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    index = written(tmp_path, [batch(20)], rows=6)
    file = Path(index.files[0])
    file.write_bytes(file.read_bytes()[:-100])
    source = MappedBlocks(index)
    assert source.batch(0).num_rows == 6
    with pytest.raises(RuntimeError, match=r"'train' in .*0-0 on .* can't be read: it has \d+ bytes"):
        source.batch(3)  # FEED-4
    file.unlink()
    with pytest.raises(RuntimeError, match=r"No such file.*with the executor that wrote them"):
        MappedBlocks(index).batch(0)  # FEED-4
    with pytest.raises(RuntimeError, match=r"'train' in .*0-0 on elsewhere can't be read: "):
        MappedBlocks(index._replace(hosts=["elsewhere"])).batch(0)  # FEED-4


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_source, "OPEN_FILES", 3)
    one = [written(tmp_path / str(i), [batch(2, i)]) for i in range(8)]
    blocks = [each.blocks[0]._replace(file=i) for i, each in enumerate(one)]
    files, hosts = [each.files[0] for each in one], [each.hosts[0] for each in one]
    source = MappedBlocks(one[0]._replace(files=files, hosts=hosts, blocks=blocks))
    for _ in range(2):
        assert [source.batch(i).column(0)[0].as_py() for i in range(8)] == [float(i) for i in range(8)]
        assert len(source._files) == 3, "FEED-5"


def test_facts_of_blocks_are_those_of_the_whole() -> None:
    facts = [
        {"nulls": {"x": 1}, "lengths": {"a": [[2, 3]]}},
        {"nulls": {}, "lengths": {"a": [[-1, -1]]}},
        {"nulls": {"x": 2, "a[]": 1}, "lengths": {"a": [[1, 2]]}},
    ]
    assert Facts.together(facts) == Facts({"x": 3, "a[]": 1}, {"a": [[1, 3]]})
    assert Facts.together([]) == Facts({}, {})
    assert fingerprint([(1, 2), (3, 4)]) != fingerprint([(3, 4), (1, 2)])


def test_a_payload_carries_the_indexes_and_stays_what_it_was(tmp_path: Path) -> None:
    index = written(tmp_path, [batch(1000)], rows=1)
    packed = function_payload(len, ["xy\n\n"], {}, sys_path=[])
    path = tmp_path / "payload"
    path.write_bytes(with_data(packed, {"train": index.pack()}))
    payload = Payload(str(path))
    assert Index.read(payload.data["train"]) == index
    fn, args, kwargs, _ = payload.call()
    assert fn(*args, **kwargs) == 4
    assert len(json.dumps(index.pack())) < 60 * len(index.blocks), "FEED-21"
    path.write_bytes(packed)
    assert Payload(str(path)).data == {}
