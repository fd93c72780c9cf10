"""Each column of each batch owns its memory, and no more than its own. No Spark."""

from __future__ import annotations

import decimal
import gc
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import phalanx
import pyarrow as pa
import pytest
from phalanx import _native
from phalanx.feeding.source import StreamedDataSet
from phalanx.feeding.stream.feeder import Feeder
from phalanx.feeding.stream.source import StreamSource
from phalanx.rank import results as ranks_results

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

ROWS = 103
BATCH = 8
Batches = Callable[..., Iterator[dict[str, Any]]]


@pytest.fixture(params=["in order", "shuffled", "stream"])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batches]:
    """Gives the batches of a table of several blocks, or of a stream."""
    monkeypatch.setattr("phalanx.feeding.blocks.source.BLOCK_ROWS", 30)
    feeders: list[Feeder] = []

    def of_blocks(table: pa.Table, **options: Any) -> Iterator[dict[str, Any]]:
        shuffle = request.param == "shuffled"
        return iter(phalanx.data(table).loader(batch_size=BATCH, shuffle=shuffle, seed=1, **options))

    def of_a_stream(table: pa.Table, **options: Any) -> Iterator[dict[str, Any]]:
        feeders.append(Feeder(table.to_batches(max_chunksize=40), 1, "table"))
        source = StreamedDataSet(StreamSource("table", feeders[-1].address))
        return iter(source.loader(batch_size=BATCH, **options))

    yield of_a_stream if request.param == "stream" else of_blocks
    for feeder in feeders:
        feeder.close()


def ragged(at: int) -> list[int]:
    return list(range(at, at + at % 4))


KINDS: dict[str, tuple[Any, Callable[[int], Any], dict[str, Any]]] = {
    "plain": (pa.int64(), lambda at: at, {}),
    "bytes of one": (pa.int8(), lambda at: at, {}),
    "booleans": (pa.bool_(), lambda at: at % 3 == 0, {}),
    "arrays of one length": (pa.list_(pa.float32()), lambda at: [at, at / 2, -at], {}),
    "arrays of arrays": (pa.list_(pa.list_(pa.int16())), lambda at: [[at, 1], [2, at]], {}),
    "arrays of a fixed size": (pa.list_(pa.int32(), 2), lambda at: [at, -at], {}),
    "arrays of booleans": (pa.list_(pa.bool_()), lambda at: [at % 2 == 0, at % 3 == 0], {}),
    "arrays without elements": (pa.list_(pa.int32()), lambda at: [], {}),
    "nulls": (pa.int32(), lambda at: at if at % 5 else None, {"nulls": 0}),
    "nulls in arrays": (pa.list_(pa.float64()), lambda at: [at if at % 5 else None, at], {"nulls": 0}),
    "decimals": (pa.decimal128(20, 2), lambda at: decimal.Decimal(at) / 4, {}),
    "padded": (pa.list_(pa.int64()), ragged, {"pad": 0}),
    "jagged": (pa.list_(pa.int64()), ragged, {"pad": "jagged"}),
    "lists of tensors": (pa.list_(pa.int64()), ragged, {"pad": "list"}),
    "lists of one length": (pa.list_(pa.int64(), 2), lambda at: [at, at], {"pad": "list"}),
}


def tensors_of(value: Any) -> list[Any]:
    """The tensors that have memory, of what a batch has of a column."""
    if isinstance(value, list):
        return value
    return [value.values(), value.offsets()] if value.is_nested else [value]


def rows_of(value: Any, wanted: list[Any]) -> list[Any]:
    """A column's rows as Python has them, without what is behind the wanted ones' ends."""
    rows = [row.tolist() for row in (value.unbind() if getattr(value, "is_nested", False) else value)]
    return [row[: len(one)] if isinstance(one, list) else row for row, one in zip(rows, wanted, strict=True)]


def filled(value: Any) -> Any:
    """A value without nulls."""
    if isinstance(value, list):
        return [filled(one) for one in value]
    return 0 if value is None else value


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensors_storage_is_as_large_as_the_tensor(batches: Batches, kind: str) -> None:
    arrow, value, options = KINDS[kind]
    table = pa.table({"x": pa.array(map(value, range(ROWS)), arrow), "at": pa.array(range(ROWS), pa.int64())})
    storages, given = set(), 0
    kept = list(batches(table, uneven="pad", **options))
    for batch in kept:
        assert list(batch) == ["x", "at", "mask"]
        for column in batch.values():
            for tensor in tensors_of(column):
                assert tensor.untyped_storage().nbytes() == tensor.nbytes, "FEED-12"
                if tensor.nbytes:
                    storages.add(tensor.untyped_storage().data_ptr())
                    given += 1
    assert len(storages) == given, "FEED-12: no two have the same"
    assert sum(int(batch["mask"].sum()) for batch in kept) == ROWS
    for batch in kept:
        wanted = [value(at) for at in batch["at"].tolist()]
        assert rows_of(batch["x"], wanted) == [filled(one) for one in wanted]


def test_batches_take_no_more_than_their_rows_pickled_and_saved(batches: Batches) -> None:
    rows = 20_000
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "v": pa.array(np.zeros((rows, 4)).tolist())})
    ids = [batch["id"] for batch in batches(table)]
    assert len(ids) == rows // BATCH
    # torch's own pickle of a tensor has some 400 bytes beside it.
    assert len(pickle.dumps(ids)) < rows * 8 + len(ids) * 500, "FEED-12"
    one = next(batches(table))
    saved = io.BytesIO()
    torch.save(one, saved)
    assert saved.tell() < sum(tensor.nbytes for tensor in one.values()) + 4000, "FEED-12"


def test_a_ranks_result_of_200_000_ids_has_1_6_megabytes(tmp_path: Path) -> None:
    rows = 200_000
    loader = phalanx.data(pa.table({"id": pa.array(range(rows), pa.int64())})).loader(
        batch_size=1000, shuffle=True
    )
    ranks_results.write_result(
        [batch["id"] for batch in loader], str(tmp_path), rank=1, max_bytes=int(1.7e6), what="the ids"
    )
    with (tmp_path / "result").open("rb") as file:
        assert sorted(one for ids in pickle.load(file) for one in ids.tolist()) == list(range(rows)), (
            "FEED-12"
        )


def test_a_batch_that_is_kept_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from phalanx.feeding.loader import window as window_module

    windows: list[Any] = []
    made = window_module.Window

    def noted(*args: Any) -> Any:
        window = made(*args)
        windows.append(weakref.ref(window))
        return window

    monkeypatch.setattr(window_module, "Window", noted)
    table = pa.table(
        {name: pa.array(map(value, range(ROWS)), arrow) for name, (arrow, value, _) in KINDS.items()}
    )
    some = table.select([name for name, (_, _, options) in KINDS.items() if options.get("pad") != "list"])
    kept = list(phalanx.data(some).loader(batch_size=BATCH, nulls=0, pad="jagged", uneven="pad"))
    gc.collect()
    assert len(kept) == 13
    assert len(windows) > 0
    assert not any(window() for window in windows), "FEED-12"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collated", [None, 2])
def test_a_data_loader_and_its_collating_have_whole_tensors(workers: int, collated: int | None) -> None:
    table = pa.table({"id": pa.array(range(64), pa.int64()), "v": [[at, at] for at in range(64)]})
    dataset = phalanx.data(table).dataset(batch_size=BATCH)
    found = list(torch.utils.data.DataLoader(dataset, batch_size=collated, num_workers=workers))
    for batch in found:
        shape = (BATCH,) if collated is None else (collated, BATCH)
        assert (batch["id"].shape, batch["v"].shape) == (shape, (*shape, 2))
        for tensor in batch.values():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes, "FEED-12"
    assert sorted(one for batch in found for one in batch["id"].flatten().tolist()) == list(range(64))


def test_the_native_copy_refuses_rows_that_are_not_there_and_places_that_are_none() -> None:
    rows, to = np.arange(8), np.zeros(4, np.int64)
    memory, place = (rows.ctypes.data, rows.nbytes), to.ctypes.data
    columns = _native.BatchColumns(None, [(8, memory)], rows)
    columns.copy(2, 4, [place])
    assert to.tolist() == [2, 3, 4, 5]
    in_blocks = _native.BatchColumns(None, [(8, [memory])], rows)
    for refused, first, places, problem in [
        (columns, 5, [place], "rows are not there"),
        (in_blocks, 0, [place], "rows are not there"),
        (columns, 0, [], "1 columns don't go to 0 places"),
        (columns, 0, [place, place], "1 columns don't go to 2 places"),
        (columns, 0, [rows.ctypes.data + 32], "onto their own block"),
    ]:
        with pytest.raises(ValueError, match=problem):
            refused.copy(first, 4, places)
    assert rows.tolist() == list(range(8))


def test_what_a_transform_gets_are_slices_of_a_window() -> None:
    table = pa.table({"id": pa.array(range(64), pa.int64())})
    kept = list(phalanx.data(table).loader(batch_size=BATCH, transform=lambda rows: rows))
    assert [rows.column(0).to_pylist() for rows in kept] == [
        list(range(at, at + BATCH)) for at in range(0, 64, BATCH)
    ]
    assert len({rows.column(0).buffers()[1].address for rows in kept}) == 1, "as docs/data.md says"
