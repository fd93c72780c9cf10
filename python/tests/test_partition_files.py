"""A partition as files, and the loader that reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from phalanx.feeding.partition_files import ARROW_FILE, SCHEMA_FILE, partition_data_loader, partition_files

pytestmark = pytest.mark.timeout(120)


def batches(*sizes: int) -> list[Any]:
    return [
        pa.RecordBatch.from_pydict({"x": [float(i) for i in range(n)], "y": list(range(n))}) for n in sizes
    ]


SCHEMA = (
    '{"type":"struct","fields":[{"name":"x","type":"double","nullable":true,"metadata":{}},'
    '{"name":"y","type":"long","nullable":true,"metadata":{}}]}'
)


def test_a_partition_is_written_for_the_ranks_and_gone_afterwards(tmp_path: Path) -> None:
    before = dict(os.environ)
    with partition_files(batches(2, 3), SCHEMA, str(tmp_path)) as env:
        assert set(env) == {ARROW_FILE, SCHEMA_FILE}
        table = pa.ipc.open_stream(env[ARROW_FILE]).read_all()
        assert table.num_rows == 5
        assert Path(env[SCHEMA_FILE]).read_text() == SCHEMA
        assert dict(os.environ) == before, "DF-1"
    assert list(tmp_path.iterdir()) == [], "DF-2"


@pytest.mark.parametrize("sizes", [(), (0, 0)])
def test_an_empty_partition_is_refused_and_leaves_nothing(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    with (
        pytest.raises(ValueError, match="Empty Spark partition is not allowed"),
        partition_files(batches(*sizes), SCHEMA, str(tmp_path)),
    ):
        pass
    assert list(tmp_path.iterdir()) == [], "DF-2"


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loader_gives_the_partitions_rows_and_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    pytest.importorskip("torch")
    with partition_files(batches(3), SCHEMA, str(tmp_path)) as env:
        for key, value in env.items():
            monkeypatch.setenv(key, value)
        loader = partition_data_loader(num_samples=4, batch_size=2, num_workers=workers)
        rows = [[column.tolist() for column in batch] for batch in loader]
    assert rows == [[[0.0, 1.0], [0, 1]], [[2.0, 0.0], [2, 0]]]


def test_the_loader_says_where_it_belongs() -> None:
    with pytest.raises(RuntimeError, match="functions run by _train_on_dataframe"):
        partition_data_loader(1, 1)
