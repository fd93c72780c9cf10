"""What arrays of Arrow are as numpy's and as Python's values: the same as pyarrow gives, without pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from phalanx.feeding.loader.arrow_memory import Texts, as_indices, numbers_of
from support.places import PYTHON

pytestmark = pytest.mark.timeout(60)

SLICES = [(0, 40), (0, 0), (3, 0), (40, 0), (1, 1), (7, 9), (8, 16), (13, 27), (39, 1)]
NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
]
TEXTS: list[Any] = [
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)),
]


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_numbers_of_any_slice_are_pyarrows(kind: Any) -> None:
    drawn = np.random.default_rng(1).integers(0, 100, 40)
    values = drawn % 3 == 0 if kind == pa.bool_() else drawn.astype(kind.to_pandas_dtype())
    array = pa.array(values, kind)
    for start, length in SLICES:
        part = array.slice(start, length)
        expected, found = part.to_numpy(zero_copy_only=False), numbers_of(part)
        assert found.dtype == expected.dtype, "FEED-1"
        assert found.tolist() == expected.tolist(), "FEED-1"
    assert numbers_of(pa.array([], kind)).tolist() == []


@pytest.mark.parametrize("has_nulls", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_texts_and_bytes_of_any_slice_are_pyarrows(kind: Any, wide: bool, has_nulls: bool) -> None:
    fixed = pa.types.is_fixed_size_binary(kind)
    words = ["", "a", "bcd", "ü", "日本", "z" * 300, "\0"] if wide else ["", "a", "bcd", "z" * 300]
    values = ["xyz" if fixed else words[i % len(words)] for i in range(40)]
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    given = [
        None if has_nulls and i % 5 == 2 else value if is_text else value.encode()
        for i, value in enumerate(values)
    ]
    array = pa.array(given, kind)
    for start, length in SLICES:
        assert Texts(array.slice(start, length)).values() == given[start : start + length], "FEED-1"
    assert Texts(pa.array([], kind)).values() == []


def test_indices_take_the_rows_that_they_name() -> None:
    rows = np.array([4, 0, 3, 3])[::-1]
    assert pa.array(range(5)).take(as_indices(rows)).to_pylist() == [3, 3, 0, 4]
    assert pa.array(range(5)).take(as_indices(rows[:0])).to_pylist() == []


def test_no_batch_of_any_type_imports_pandas(tmp_path: Path) -> None:
    columns = {
        "number": pa.array(range(40)),
        "flag": pa.array([i % 3 == 0 for i in range(40)]),
        "day": pa.array(range(40), pa.int32()).cast(pa.date32()),
        "time": pa.array(range(40)).cast(pa.timestamp("us")),
        "price": pa.array(range(40)).cast(pa.decimal128(24, 2)),
        "text": pa.array([f"ü{i}" for i in range(40)]),
        "raw": pa.array([b"ab"] * 40),
        "fixed": pa.array([[i, 1] for i in range(40)]),
        "ragged": pa.array([[1.5] * (i % 4) for i in range(40)]),
    }
    table, path = pa.table(columns), tmp_path / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    script = f"""
import sys
import pyarrow as pa
import phalanx
with pa.OSFile({str(path)!r}) as file:
    table = pa.ipc.open_stream(file).read_all()
rows = [len(batch["text"]) for shuffle in (False, True, "full")
        for batch in phalanx.data(table).loader(batch_size=8, shuffle=shuffle)]
print(sum(rows), {{"pandas"}} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(PYTHON)},
    )
    assert done.stdout == "120 set()\n", f"FEED-2: {done.stderr}"
