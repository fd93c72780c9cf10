"""A partition as a file of blocks, and the samples that a rank makes of it, beside pyspark's own class."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from phalanx.feeding.blocks.index import Block, Facts, Index
from phalanx.feeding.blocks.source import MappedBlocks
from phalanx.feeding.blocks.write import write_partition
from phalanx.feeding.partitions import dataset as partition_dataset
from phalanx.feeding.partitions.dataset import PartitionDataset
from phalanx.feeding.partitions.partitions import numbers_of, partition_data_loader, partition_file

pytestmark = pytest.mark.timeout(120)

VECTOR = pa.struct(
    [
        pa.field("type", pa.int8(), nullable=False),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
TYPES = {
    "f32": (pa.float32(), "float"),
    "f64": (pa.float64(), "double"),
    "i16": (pa.int16(), "smallint"),
    "i32": (pa.int32(), "int"),
    "i64": (pa.int64(), "bigint"),
    "af32": (pa.list_(pa.float32()), "array<float>"),
    "af64": (pa.list_(pa.float64()), "array<double>"),
    "ai16": (pa.list_(pa.int16()), "array<smallint>"),
    "ai32": (pa.list_(pa.int32()), "array<int>"),
    "ai64": (pa.list_(pa.int64()), "array<bigint>"),
    "v": (VECTOR, "vector"),
    "null_f32": (pa.float32(), "float"),
    "null_i16": (pa.int16(), "smallint"),
    "null_in_i32": (pa.list_(pa.int32()), "array<int>"),
    "null_in_f32": (pa.list_(pa.float32()), "array<float>"),
    "ragged": (pa.list_(pa.int64()), "array<bigint>"),
}


def row(i: int) -> dict[str, Any]:
    dense = {"type": 1, "size": None, "indices": None, "values": [i / 3, -0.0]}
    sparse = {"type": 0, "size": 2, "indices": [i % 2], "values": [i / 7]}
    made: dict[str, Any] = dict.fromkeys(("i16", "i32", "i64"), i)
    made |= dict.fromkeys(("f32", "f64"), i / 3)
    made |= {name: [i, i + 1] for name in ("ai16", "ai32", "ai64")}
    made |= {name: [i / 3, math.nan] for name in ("af32", "af64")}
    made |= {"v": sparse if i % 3 else dense, "ragged": [i] * (i % 4)}
    made |= dict.fromkeys(("null_f32", "null_i16"), None if i % 3 == 0 else i)
    return made | {name: [None, i] if i % 3 == 0 else [i, i] for name in ("null_in_i32", "null_in_f32")}


SCHEMA = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])


def batch(first: int, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row(i) for i in range(first, first + rows)], schema=SCHEMA)


def indexed(folder: Path, batches: list[pa.RecordBatch], *, block_rows: int = 1 << 20) -> Index:
    """The index of a partition that was written."""
    path = str(folder / "written" / "0-0")
    blocks = write_partition(batches, path, 1 << 20, block_rows)
    return Index(
        name="partition",
        hosts=["here"],
        files=[path],
        blocks=[Block(0, *(block[of] for of in ("start", "bytes", "rows", "checksum"))) for block in blocks],
        facts=Facts.together(json.loads(block["facts"]) for block in blocks),
        whole=False,
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return type(one) is type(other) and (one == other or (math.isnan(one) and math.isnan(other)))


@pytest.mark.parametrize("num_samples", [0, 1, 9, 24, 60])
@pytest.mark.parametrize("block_rows", [5, 1 << 20])
def test_samples_are_those_of_pysparks_class_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_samples: int, block_rows: int
) -> None:
    from pyspark.ml.torch.data import _SparkPartitionTorchDataset

    # pyspark's batches each have nulls here; a vector's size comes as a float there where others have none.
    batches = [batch(0, 10), batch(10, 14)]
    with pa.ipc.new_stream(str(tmp_path / "stream"), SCHEMA) as stream:
        for one in batches:
            stream.write_batch(one)
    fields: Any = [
        SimpleNamespace(dataType=SimpleNamespace(simpleString=lambda kind=kind: kind))
        for _, kind in TYPES.values()
    ]
    theirs = list(_SparkPartitionTorchDataset(str(tmp_path / "stream"), fields, num_samples))
    monkeypatch.setattr(partition_dataset, "_ROWS", 4)
    blocks = MappedBlocks(indexed(tmp_path, batches, block_rows=block_rows))
    dataset = PartitionDataset(blocks, num_samples)
    for _ in range(2):
        ours = list(dataset)
        assert len(ours) == len(theirs) == num_samples
        for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert isinstance(mine, list)
            for name, one, another in zip(TYPES, mine, other, strict=True):
                assert same(one, another), f"FEED-26: {name} of row {at}: {one!r} {another!r}"


def test_few_rows_are_taken_out_of_a_block_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    values = partition_dataset._values
    monkeypatch.setattr(
        partition_dataset,
        "_values",
        lambda column, **nulls: taken.append(len(column)) or values(column, **nulls),
    )
    blocks = MappedBlocks(indexed(tmp_path, [batch(0, 20)]))
    for rows, size, expected in ((7, 1 << 20, [7, 7, 6]), (100, 1, [1] * 20)):
        monkeypatch.setattr(partition_dataset, "_ROWS", rows)
        monkeypatch.setattr(partition_dataset, "_BYTES", size)
        taken.clear()
        assert [sample[4] for sample in PartitionDataset(blocks, 20)] == list(range(20))
        assert taken[:: len(TYPES)] == expected, "FEED-27"


@pytest.mark.parametrize("num_samples", [0, 1, 6, 13, 20, 45])
def test_rows_come_in_their_order_and_again_until_there_are_samples_enough(
    tmp_path: Path, num_samples: int
) -> None:
    blocks = MappedBlocks(indexed(tmp_path, [batch(0, 20)], block_rows=6))
    ids = [sample[4] for sample in PartitionDataset(blocks, num_samples)]
    assert ids == (list(range(20)) * 3)[:num_samples]


def test_columns_with_nulls_anywhere_are_floats_everywhere(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64()), ("a", pa.list_(pa.int32()))])
    rows = [{"x": 1, "a": [1]}, {"x": 2, "a": [2]}, {"x": None, "a": None}, {"x": 4, "a": [None]}]
    written = indexed(tmp_path, [pa.RecordBatch.from_pylist(rows, schema=schema)], block_rows=1)
    samples = list(PartitionDataset(MappedBlocks(written), 4))
    assert [type(x) for x, _ in samples] == [float] * 4, "FEED-26"
    assert samples[2][1] is None
    assert {a.dtype for _, a in samples if a is not None} == {np.dtype(np.float64)}, "FEED-26"


def test_columns_that_pyspark_does_not_take_are_refused_by_name() -> None:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import types as T

    def frame(**columns: T.DataType) -> Any:
        fields = [T.StructField(name, kind) for name, kind in columns.items()]
        return SimpleNamespace(schema=T.StructType(fields), columns=list(columns))

    numbers = frame(v=VectorUDT(), a=T.ArrayType(T.FloatType()), x=T.LongType())
    assert numbers_of(numbers) is numbers
    for kind in (T.StringType(), T.BooleanType(), T.ByteType(), T.ArrayType(T.StringType())):
        with pytest.raises(
            ValueError,
            match=rf"does not support loading data from field of type {kind.simpleString()}: the column 'y'",
        ):
            numbers_of(frame(x=T.LongType(), y=kind))  # FEED-30
    with pytest.raises(ValueError, match="has no columns"):
        numbers_of(frame())


def test_a_partition_is_written_for_the_ranks_and_gone_afterwards(tmp_path: Path) -> None:
    before = dict(os.environ)
    with partition_file([batch(0, 0), batch(0, 2), batch(2, 3)], str(tmp_path)) as env:
        assert dict(os.environ) == before, "FEED-28"
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o077 == 0, "others may not read it"
        (told,) = env.values()
        index = Index.read(json.loads(Path(told).read_text()))
        assert [(block.file, block.rows) for block in index.blocks] == [(0, 5)]
        assert {Path(told).parent, Path(index.files[0]).parent} == {folder}
        assert MappedBlocks(index).batch(0).column("i64").to_pylist() == [0, 1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == [], "FEED-29"


@pytest.mark.parametrize("sizes", [(), (0, 0)])
def test_an_empty_partition_is_refused_and_leaves_nothing(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    with (
        pytest.raises(ValueError, match="Empty Spark partition is not allowed"),
        partition_file([batch(0, size) for size in sizes], str(tmp_path)),
    ):
        pass
    assert list(tmp_path.iterdir()) == [], "FEED-29"


def test_a_partition_that_could_not_be_computed_leaves_nothing(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(0, 1)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"), partition_file(batches(), str(tmp_path)):
        pass
    assert list(tmp_path.iterdir()) == [], "FEED-29"


@pytest.fixture
def in_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a rank whose partition has the rows 3, 4 and 5."""
    with partition_file([batch(3, 3)], str(tmp_path)) as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        yield env


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loader_gives_the_ranks_rows_and_begins_again(in_rank: Any, workers: int) -> None:
    import torch
    from torch.utils.data import DataLoader

    loader = partition_data_loader(num_samples=4, batch_size=2, num_workers=workers)
    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, loader.num_workers) == (2, workers)
    assert loader.prefetch_factor == (2 if workers else None)
    with pytest.raises(RuntimeError, match=r"equal size|resize storage"):
        next(iter(loader))  # of the ragged column, as in pyspark
    two = DataLoader(loader.dataset, 2, num_workers=2, collate_fn=list)
    with pytest.raises(RuntimeError, match="read by one process: give num_workers=0 or 1"):
        next(iter(two))
    for _ in range(2):
        batches = list(DataLoader(loader.dataset, 2, num_workers=workers, collate_fn=collated))
        assert [ids.tolist() for ids, _ in batches] == [[3, 4], [5, 3]]
        assert [vectors.dtype for _, vectors in batches] == [torch.float64] * 2


def collated(samples: list[Any]) -> Any:
    from torch.utils.data import default_collate

    return default_collate([[sample[4], sample[10]] for sample in samples])


def test_the_loader_says_where_it_belongs() -> None:
    with pytest.raises(RuntimeError, match="functions run by _train_on_dataframe"):
        partition_data_loader(1, 1)


def test_pysparks_own_function_is_phalanxs_in_such_a_rank_only(in_rank: dict[str, str]) -> None:
    script = """
import os, sys
import phalanx
assert not {"torch", "pyspark", "pyarrow", "numpy"} & set(sys.modules), "FEED-39"
import inspect
own = {name: os.environ.pop(name) for name in sys.argv[1:]}  # as in a warm pool, which isn't a rank yet
from pyspark.ml.torch.distributor import _get_spark_partition_data_loader as loader
print(list(inspect.signature(loader).parameters))
for env in ({}, own):
    os.environ.update(env)
    try:
        print([sample[4] for sample in loader(4, 2, num_workers=0).dataset])
    except KeyError as problem:
        print(problem)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *in_rank], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['num_samples', 'batch_size', 'num_workers', 'prefetch_factor']",
        "'SPARK_PARTITION_ARROW_DATA_FILE'",
        "[3, 4, 5, 3]",
    ], "FEED-38"
