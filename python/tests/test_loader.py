"""A loader over a local table: types, order, equal steps, resume; and what is refused. No Spark."""

from __future__ import annotations

import datetime
import decimal
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import phalanx
import pyarrow as pa
import pytest
from support.node_end import node_and_rank, notes_at
from support.tiers import whole

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of several blocks, and few steps gathered at a time."""
    monkeypatch.setattr("phalanx.feeding.blocks.source.BLOCK_ROWS", 7)
    monkeypatch.setattr("phalanx.feeding.loader.loader.GATHERED_ROWS", 9)


def numbered(rows: int) -> pa.Table:
    return pa.table({"i": pa.array(range(rows), pa.int64())})


def taken(table: pa.Table, world: int, epochs: int = 1, **options: Any) -> list[list[list[int]]]:
    """For each rank the values of its batches, pass after pass."""
    ranks = []
    for rank in range(world):
        loader = phalanx.data(table).loader(rank=rank, world_size=world, **options)
        ranks.append([batch["i"].tolist() for _ in range(epochs) for batch in loader])
    return ranks


def order_of(ranks: list[list[list[int]]]) -> list[int]:
    """The global order: of each step the ranks' batches one after the other."""
    return [value for step in zip(*ranks, strict=True) for batch in step for value in batch]


def test_what_runs_no_loader_imports_nothing_for_one() -> None:
    script = """
import sys
import phalanx.feeding.source, phalanx.feeding.preparation
print({"torch", "numpy", "pyarrow", "pyspark"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", f"FEED-25: {done.stderr}"


@pytest.mark.parametrize("shuffle", [False, True, "full"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_has_as_many_steps_and_the_order_is_the_same_for_any_number_of_ranks(
    shuffle: Any, world: int
) -> None:
    table = numbered(50)
    ranks = taken(table, world, batch_size=4, shuffle=shuffle, seed=3)
    assert {len(batches) for batches in ranks} == {50 // (4 * world)}, "FEED-22"
    order = order_of(ranks)
    alone = order_of(taken(table, 1, batch_size=1, shuffle=shuffle, seed=3))
    assert sorted(alone) == list(range(50))
    assert order == alone[: len(order)], "FEED-23"
    assert (alone == list(range(50))) is (shuffle is False)


def test_epochs_differ_and_come_again() -> None:
    table = numbered(30)
    loader = phalanx.data(table).loader(batch_size=30, shuffle=True)
    epochs = [batch["i"].tolist() for _ in range(3) for batch in loader]
    assert [sorted(epoch) for epoch in epochs] == [list(range(30))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    loader.set_epoch(1)
    assert [batch["i"].tolist() for batch in loader] == [epochs[1]]
    assert loader.epoch == 2


@pytest.mark.parametrize("uneven", ["drop", "wrap", "pad"])
def test_the_last_rows_are_left_out_or_the_batch_is_filled(uneven: str) -> None:
    ranks = [
        list(phalanx.data(numbered(10)).loader(batch_size=4, uneven=uneven, rank=rank, world_size=2))
        for rank in range(2)
    ]
    rows = [[batch["i"].tolist() for batch in batches] for batches in ranks]
    first = [[0, 1, 2, 3]], [[4, 5, 6, 7]]
    if uneven == "drop":
        assert rows == list(first)
        return
    assert rows == [[*first[0], [8, 9, 0, 1]], [*first[1], [2, 3, 4, 5]]]
    masks = [[batch["mask"].tolist() for batch in batches if "mask" in batch] for batches in ranks]
    yes, no = [True] * 4, [False] * 4
    assert masks == ([[yes, [True, True, False, False]], [yes, no]] if uneven == "pad" else [[], []])


@pytest.mark.parametrize("shuffle", [False, True, "full"])
@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_a_state_goes_on_with_the_next_row_for_another_number_of_ranks(shuffle: Any, steps: int) -> None:
    table = numbered(101)
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 8}
    whole = taken(table, 1, epochs=2, batch_size=1, **options)[0]
    before = [phalanx.data(table).loader(batch_size=5, rank=r, world_size=3, **options) for r in range(3)]
    passes = [iter(loader) for loader in before]
    seen = [value for _ in range(steps) for each in passes for value in next(each)["i"].tolist()]
    states = [pickle.dumps(loader.state_dict()) for loader in before]
    assert len(set(states)) == 1
    after = [
        phalanx.data(table).loader(batch_size=3, uneven="pad", rank=r, world_size=2, **options)
        for r in range(2)
    ]
    for loader in after:
        loader.load_state_dict(pickle.loads(states[0]))
    for _ in range(2):  # the rest of the epoch, and the next one
        for both in zip(*after, strict=True):
            seen += [value for batch in both for value in batch["i"][batch["mask"]].tolist()]
    assert seen == [row for batch in whole for row in batch], "FEED-23"


def test_the_state_at_an_epochs_last_batch_is_the_next_epochs_beginning() -> None:
    loader = phalanx.data(numbered(10)).loader(batch_size=5)
    states = [(loader.state_dict()["epoch"], loader.state_dict()["row"]) for _ in loader]
    assert states == [(0, 5), (1, 0)]
    loader.load_state_dict({**loader.state_dict(), "epoch": 4, "row": 5})
    loader.set_epoch(4)  # as libraries do at an epoch's beginning
    assert [batch["i"].tolist() for batch in loader] == [[5, 6, 7, 8, 9]]


def test_a_pass_that_is_given_up_is_an_epoch() -> None:
    loader = phalanx.data(numbered(10)).loader(batch_size=5)
    iter(loader)  # as libraries do that look whether it can be done
    next(iter(loader))
    assert loader.epoch == 0
    assert len(list(loader)) == 2
    assert loader.state_dict()["epoch"] == 2


def test_a_state_of_other_data_or_of_another_order_is_refused() -> None:
    state = phalanx.data(numbered(10)).loader(batch_size=2, shuffle=True, seed=1).state_dict()
    changed = pa.table({"i": pa.array([*range(9), 11], pa.int64())})
    for table, options, word in [
        (changed, {"shuffle": True, "seed": 1}, "other data"),
        (numbered(10), {"shuffle": True, "seed": 2}, "another seed"),
        (numbered(10), {"shuffle": "full", "seed": 1}, "another shuffle"),
    ]:
        loader = phalanx.data(table).loader(batch_size=2, **options)
        with pytest.raises(ValueError, match=f"was saved with {word}"):
            loader.load_state_dict(state)  # FEED-24
    phalanx.data(numbered(10)).loader(batch_size=5, shuffle=True, seed=1).load_state_dict(state)


def test_a_table_is_serialised_once_however_often_its_state_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from phalanx.feeding.blocks import source as block_source

    as_stream, serialised = block_source.as_stream, []

    def counted(block: Any) -> Any:
        serialised.append(block)
        return as_stream(block)

    monkeypatch.setattr(block_source, "as_stream", counted)
    data = phalanx.data(numbered(50))
    loaders = [data.loader(batch_size=5, seed=seed) for seed in range(2)]
    states = [loader.state_dict()["data"] for _ in range(3) for loader in loaders]
    assert states == [phalanx.data(numbered(50)).loader(batch_size=5).state_dict()["data"]] * 6
    assert len(serialised) == 2 * len(data._source._batches), "once for each of the two tables"


NUMBERS = {
    "int8": (pa.int8(), torch.int8),
    "int16": (pa.int16(), torch.int16),
    "int32": (pa.int32(), torch.int32),
    "int64": (pa.int64(), torch.int64),
    "float32": (pa.float32(), torch.float32),
    "float64": (pa.float64(), torch.float64),
}


@pytest.mark.parametrize("shuffle", [False, True])
def test_numbers_keep_their_types_and_bits(shuffle: bool) -> None:
    values = np.random.default_rng(1).integers(-100, 100, 40)
    table = pa.table({name: pa.array(values).cast(kind) for name, (kind, _) in NUMBERS.items()})
    nan = np.array([0x7FC12345, 0xFF800000, 0x80000000, 1] * 10, np.uint32).view(np.float32)
    table = table.append_column("odd", pa.array(nan)).append_column("at", pa.array(range(40)))
    for batch in phalanx.data(table).loader(batch_size=8, shuffle=shuffle):
        at = batch["at"].numpy()
        for name, (_, kind) in NUMBERS.items():
            assert batch[name].dtype == kind, "FEED-11"
            assert batch[name].tolist() == values[at].tolist(), "FEED-11"
        assert batch["odd"].numpy().view(np.uint32).tolist() == nan.view(np.uint32)[at].tolist(), "FEED-11"


def test_what_is_no_number_by_itself_becomes_one_or_a_list() -> None:
    when = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc)
    rows = 9
    table = pa.table(
        {
            "flag": [i % 3 == 0 for i in range(rows)],
            "day": pa.array([datetime.date(1970, 1, 1 + i) for i in range(rows)]),
            "time": pa.array([when + datetime.timedelta(i) for i in range(rows)], pa.timestamp("us", "UTC")),
            "span": pa.array([datetime.timedelta(seconds=i) for i in range(rows)], pa.duration("us")),
            "price": pa.array([decimal.Decimal(i) / 4 for i in range(rows)], pa.decimal128(10, 2)),
            "text": [f"line {i} ü" for i in range(rows)],
            "raw": pa.array([bytes([i, 0, 0]) for i in range(rows)]),
            "word": pa.array(["a", "b", "a"] * 3).dictionary_encode(),
            "flags": pa.array([[True, i > 4] for i in range(rows)], pa.list_(pa.bool_())),
            "square": pa.array([[[i, 1], [2, i]] for i in range(rows)], pa.list_(pa.list_(pa.int16()))),
            "fixed": pa.array([[i, -i] for i in range(rows)], pa.list_(pa.float32(), 2)),
        }
    )
    start = int(when.timestamp() * 1e6)
    for batches in (
        list(phalanx.data(table).loader(batch_size=9)),
        list(phalanx.data(table).loader(batch_size=9, shuffle=True)),
    ):
        (batch,) = batches
        at = batch["day"].tolist()
        assert sorted(at) == list(range(rows))
        assert batch["flag"].tolist() == [i % 3 == 0 for i in at]
        assert batch["time"].tolist() == [start + i * 86_400_000_000 for i in at]
        assert batch["span"].tolist() == [i * 1_000_000 for i in at]
        assert batch["price"].tolist() == [i / 4 for i in at]
        assert batch["text"] == [f"line {i} ü" for i in at]
        assert batch["raw"] == [bytes([i, 0, 0]) for i in at]
        assert batch["word"] == ["aba"[i % 3] for i in at]
        assert batch["flags"].tolist() == [[True, i > 4] for i in at]
        assert batch["square"].tolist() == [[[i, 1], [2, i]] for i in at]
        assert batch["fixed"].tolist() == [[i, -i] for i in at]
        kinds = {name: value.dtype for name, value in batch.items() if isinstance(value, torch.Tensor)}
        assert kinds == {
            "flag": torch.bool,
            "day": torch.int32,
            "time": torch.int64,
            "span": torch.int64,
            "price": torch.float64,
            "flags": torch.bool,
            "square": torch.int16,
            "fixed": torch.float32,
        }


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrays_of_different_lengths_are_lists_padded_or_jagged(shuffle: bool) -> None:
    table = pa.table({"n": list(range(12)), "ids": [list(range(i)) for i in range(12)]})
    for batch in phalanx.data(table).loader(batch_size=4, shuffle=shuffle):
        assert [one.tolist() for one in batch["ids"]] == [list(range(n)) for n in batch["n"].tolist()]
        assert batch["ids"][0].dtype == torch.int64
    for batch in phalanx.data(table).loader(batch_size=4, shuffle=shuffle, pad=-1):
        lengths = batch["n"].tolist()
        assert batch["ids"].tolist() == [[*range(n), *[-1] * (max(lengths) - n)] for n in lengths]
    batches = list(phalanx.data(table).loader(batch_size=4, shuffle=shuffle, pad="jagged"))
    for batch in batches:
        assert batch["ids"].layout == torch.jagged
        assert [one.tolist() for one in batch["ids"].unbind()] == [
            list(range(n)) for n in batch["n"].tolist()
        ]
        batch["ids"].values().fill_(-5)  # FEED-12
    last = batches[-1]["n"].tolist()
    assert [len(one) for one in batches[-1]["ids"].unbind()] == last


@pytest.mark.parametrize("shuffle", [False, True])
def test_nulls_are_refused_or_filled_and_nan_stays(shuffle: bool) -> None:
    table = pa.table(
        {
            "x": pa.array([1.5, None, float("nan"), None], pa.float32()),
            "flag": [True, None, False, None],
            "ids": [[1, None], [2, 3], [None, None], [4, 5]],
            "text": ["a", None, "c", None],
        }
    )
    with pytest.raises(ValueError, match="column 'x' of the data set 'table' has 2 nulls"):
        phalanx.data(table).loader(batch_size=4)
    (batch,) = phalanx.data(table).loader(batch_size=4, nulls=0, shuffle=shuffle)
    rows = sorted(zip(batch["text"], batch["x"].tolist(), batch["flag"].tolist(), strict=True), key=str)
    assert str(rows) == "[('a', 1.5, True), ('c', nan, False), (None, 0.0, False), (None, 0.0, False)]"
    assert sorted(batch["ids"].tolist()) == [[0, 0], [1, 0], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="nulls='none' doesn't fit the column 'x'"):
        phalanx.data(table).loader(batch_size=4, nulls="none")
    with pytest.raises(ValueError, match="column 'a' of the data set 'table' has 1 rows without an array"):
        phalanx.data(pa.table({"a": [[1], None]})).loader(batch_size=1, nulls=0)


def test_a_transform_has_the_record_batch_and_makes_the_batch() -> None:
    table = pa.table({"s": [{"a": i, "b": [i] * i} for i in range(10)], "name": [str(i) for i in range(10)]})
    with pytest.raises(
        TypeError, match=r"column 's' of the data set 'table' is of type struct.* give the loader a"
    ):
        phalanx.data(table).loader(batch_size=5)  # FEED-13

    def sums(batch: pa.RecordBatch) -> dict[str, Any]:
        return {"sum": sum(row["s"]["a"] + len(row["s"]["b"]) for row in batch.to_pylist())}

    loader = phalanx.data(table).loader(batch_size=5, shuffle=True, transform=sums, uneven="pad")
    batches = list(loader)
    assert sum(batch["sum"] for batch in batches) == 90
    assert batches[0]["mask"].all()
    with pytest.raises(TypeError, match="has to return a dictionary"):
        next(iter(phalanx.data(table).loader(batch_size=5, transform=len, uneven="pad")))


def test_a_batch_is_its_owners() -> None:
    table = pa.table({"x": np.arange(20.0), "v": pa.array([[i, i] for i in range(20)])})
    loader = phalanx.data(table).loader(batch_size=4)
    for batch in loader:
        batch["x"].zero_()
        batch["v"].zero_()
    assert [batch["x"].tolist() for batch in loader][1] == [4.0, 5.0, 6.0, 7.0], "FEED-12"
    assert table["x"].to_pylist() == [float(i) for i in range(20)], "FEED-12"


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_data_loader_gives_the_same_batches(workers: int) -> None:
    data = phalanx.data(numbered(40))
    expected = [batch["i"].tolist() for batch in data.loader(batch_size=6, shuffle=True)]
    dataset = data.dataset(batch_size=6, shuffle=True)
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    assert len(loader) == 6
    dataset.set_epoch(0)
    assert [batch["i"].tolist() for batch in loader] == expected
    dataset.set_epoch(1)
    second = [batch["i"].tolist() for batch in loader]
    assert second != expected
    if workers:
        dataset.set_epoch(0)
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=None, num_workers=workers, persistent_workers=True
        )
        assert [[batch["i"].tolist() for batch in loader] for _ in range(2)] == [expected, second]
        del loader


@whole("other libraries")
@pytest.mark.filterwarnings("ignore")
def test_lightning_and_accelerate_take_a_loader_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    lightning = pytest.importorskip("lightning")
    accelerate = pytest.importorskip("accelerate")
    seen: list[list[int]] = []

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: dict[str, Any], _: int) -> Any:
            seen.append(batch["i"].tolist())
            return self.layer(batch["i"].float()[:, None]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = phalanx.data(numbered(40)).loader(batch_size=8, shuffle=True)
    epochs = [[batch["i"].tolist() for batch in loader] for _ in range(2)]
    loader.set_epoch(0)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", **dict.fromkeys(quiet, False))
    trainer.fit(Model(), loader)
    assert seen == epochs[0] + epochs[1]
    assert accelerate.Accelerator(cpu=True).prepare(loader) is loader


def test_a_table_may_be_pandas_and_a_replicated_one_is_whole_on_every_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    frame = numbered(8).to_pandas()
    assert [batch["i"].tolist() for batch in phalanx.data(frame).loader(batch_size=2)] == [[2, 3], [6, 7]]
    whole = phalanx.data(phalanx.replicated(frame))
    assert whole.rows == 8
    assert [batch["i"].tolist() for batch in whole.loader(batch_size=8)] == [list(range(8))]


def test_a_report_has_the_share_of_time_that_its_rank_waited_for_batches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from phalanx.feeding.loader import loader as loader_module
    from phalanx.rank import reporting

    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, time=lambda: now)
    monkeypatch.setattr(reporting, "time", clock)
    monkeypatch.setattr(loader_module, "time", clock)
    monkeypatch.setattr(reporting, "_entered", None)
    node, end = node_and_rank()
    reporting.enter(end, str(tmp_path))

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal now
        now += 3.0
        return batch

    phalanx.report(step=0)
    for step, _ in enumerate(phalanx.data(numbered(4)).loader(batch_size=1, transform=slow), 1):
        now += 1.0
        phalanx.report(step=step, loss=step, **({"data": "mine"} if step == 4 else {}))
    now += 1.0
    phalanx.report(step=5)
    with node:
        values = [note["report"]["values"] for note in notes_at(node)]
    waited = {"data": 0.75}
    assert values == [
        {},
        *({"loss": float(step), **waited} for step in (1, 2, 3)),
        {"loss": 4.0, "data": "mine"},
        {"data": 0.0},
    ]


def test_what_is_no_data_or_no_plan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHALANX_PAYLOAD", raising=False)
    with pytest.raises(RuntimeError, match="there is no data set 'train' here"):
        phalanx.data("train")
    with pytest.raises(TypeError, match="not list"):
        phalanx.data([1, 2])
    data = phalanx.data(numbered(3))
    for options, problem in [
        ({"batch_size": 0}, "batch_size has to be positive"),
        ({"batch_size": 1, "uneven": "maybe"}, 'uneven has to be "drop", "wrap" or "pad"'),
        ({"batch_size": 1, "shuffle": "half"}, 'shuffle has to be True, False or "full"'),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "no rank 2 among 2"),
    ]:
        with pytest.raises(ValueError, match=problem):
            data.loader(**options)
    with pytest.raises(TypeError, match="batch_size has to be an int"):
        data.loader(batch_size="8")
    with pytest.raises(ValueError, match="has a column 'mask'"):
        phalanx.data(pa.table({"mask": [1]})).loader(batch_size=1, uneven="pad")
    with pytest.warns(UserWarning, match="3 rows, fewer than the 4 of a step"):
        assert list(data.loader(batch_size=4)) == []
    assert list(phalanx.data(numbered(0)).loader(batch_size=4, uneven="pad")) == []
