"""A streamed data set from a task's batches to the steps of its ranks. No Spark: feeders and ranks are threads."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from phalanx.feeding.loader.dataset import BatchDataset
from phalanx.feeding.loader.options import LoaderOptions
from phalanx.feeding.stream import wire
from phalanx.feeding.stream.feeder import Feeder
from phalanx.feeding.stream.loader import StreamLoader
from phalanx.feeding.stream.source import StreamSource
from phalanx.feeding.stream.step_agreement import RankLeft, StepAgreement
from support.programs import eventually

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

BATCH = 4


@pytest.fixture
def feed() -> Iterator[Callable[..., Feeder]]:
    """Makes feeders, and closes them after the test."""
    made: list[Feeder] = []

    def make(batches: Iterable[Any], ranks: int = 1) -> Feeder:
        made.append(Feeder(batches, ranks, "train"))
        return made[-1]

    yield make
    for feeder in made:
        feeder.close()
    assert not any(thread.name == "phalanx-feed" for thread in threading.enumerate()), "FEED-48"
    with open("/proc/net/unix") as sockets:
        left = sockets.read()
    assert not any(feeder.address in left for feeder in made), "FEED-57: no address outlives its task"


@pytest.fixture(scope="module")
def store() -> Callable[[], Any]:
    """Connects to a store."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)


def numbered(first: int, count: int, at_once: int = 7) -> list[Any]:
    numbers = range(first, first + count)
    return [
        pa.RecordBatch.from_pydict({"i": pa.array(numbers[at : at + at_once], pa.int64())})
        for at in range(0, count, at_once)
    ]


def loader_of(feeder: Feeder, **options: Any) -> StreamLoader:
    source = options.pop("source", None) or StreamSource("train", feeder.address)
    store = options.pop("store", None)
    defaults: dict[str, Any] = {"batch_size": BATCH, "rank": 0, "world_size": 1}
    return StreamLoader(source, LoaderOptions(**{**defaults, **options}), store=store)


def at_once(world: int, rank: Callable[[int], Any]) -> list[Any]:
    """What each rank gives, or raises."""
    found: list[Any] = [None] * world

    def one(at: int) -> None:
        try:
            found[at] = rank(at)
        except Exception as problem:
            found[at] = problem

    threads = [threading.Thread(target=one, args=(at,)) for at in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def epoch(
    feed: Callable[..., Feeder], store: Callable[[], Any], rows: list[int], ranks: int, uneven: str
) -> list[list[dict[str, Any]]]:
    """The batches of each rank; `rows` has those of each task's partition, and each task `ranks` ranks."""
    feeders = [feed(numbered(100 * at, count), ranks) for at, count in enumerate(rows)]
    world = len(rows) * ranks
    name = os.urandom(4).hex()

    def one(rank: int) -> list[dict[str, Any]]:
        source = StreamSource(name, feeders[rank // ranks].address)
        options: dict[str, Any] = {"uneven": uneven, "rank": rank, "world_size": world, "store": store}
        return list(loader_of(feeders[rank // ranks], source=source, **options))

    return at_once(world, one)


WORLDS = [([30], 1), ([30, 11], 1), ([41], 2), ([50, 3, 20], 1), ([64, 64], 2), ([2, 1], 1), ([99, 97], 3)]


@pytest.mark.parametrize(("rows", "ranks"), WORLDS)
@pytest.mark.parametrize("uneven", ["drop", "pad", "wrap"])
def test_all_ranks_have_as_many_steps_whatever_comes_to_each(
    feed: Any, store: Any, rows: list[int], ranks: int, uneven: str
) -> None:
    batches = epoch(feed, store, rows, ranks, uneven)
    shares = [(count + ranks - 1 - at) // ranks for count in rows for at in range(ranks)]
    steps = min(share // BATCH for share in shares) if uneven == "drop" else -(-max(shares) // BATCH)
    assert [len(of_rank) for of_rank in batches] == [steps] * len(shares), "FEED-51, FEED-43, FEED-46"
    assert all(len(batch["i"]) == BATCH for of_rank in batches for batch in of_rank), "FEED-51"
    given = [number for of_rank in batches for batch in of_rank for number in batch["i"].tolist()]
    there = sorted(100 * at + number for at, count in enumerate(rows) for number in range(count))
    if uneven == "drop":
        assert len(set(given)) == len(given) == steps * BATCH * len(shares), "none comes twice"
    elif uneven == "wrap":
        assert sorted(set(given)) == there
        for at, (of_rank, share) in enumerate(zip(batches, shares, strict=True)):
            own = [number for batch in of_rank for number in batch["i"].tolist()]
            assert set(own[share:]) <= set(own[:BATCH]), f"rank {at} is filled with rows of its beginning"
    else:
        counting = [
            number
            for of_rank in batches
            for batch in of_rank
            for number in batch["i"][batch["mask"]].tolist()
        ]
        assert sorted(counting) == there, "FEED-56: every row once"


def test_a_rank_without_rows_has_no_steps_or_an_error(feed: Any, store: Any) -> None:
    assert epoch(feed, store, [30, 0], 1, "drop") == [[], []]
    assert epoch(feed, store, [0, 0], 1, "pad") == [[], []]
    told, said = epoch(feed, store, [30, 0], 1, "pad")
    assert "rank 1 received no row of the data set" in str(said)
    assert isinstance(told, RankLeft), "FEED-44"


def test_a_rank_that_leaves_early_is_named_to_the_others_which_do_not_wait(feed: Any, store: Any) -> None:
    feeders = [feed(numbered(0, 4000)), feed(numbered(0, 4000))]

    def one(rank: int) -> int:
        loader = loader_of(feeders[rank], rank=rank, world_size=2, store=store)
        taken = 0
        for _ in loader:
            taken += 1
            if rank == 1 and taken == 3:
                break
        return taken

    told, taken = at_once(2, one)
    assert taken == 3
    assert isinstance(told, RankLeft), "FEED-44"
    assert "rank 1 has left its loop over the data set 'train' after 3 steps" in str(told)
    eventually(
        "the thread has ended", 10, lambda: not any(t.name == "phalanx-stream" for t in threading.enumerate())
    )


def test_the_store_keeps_two_windows(store: Any) -> None:
    ranks = [StepAgreement("small", rank, 2, store) for rank in range(2)]
    for window in range(20):
        found = at_once(2, lambda rank: ranks[rank].vote(ended=rank == 0, less=True))
        assert [tuple(votes) for votes in found] == [(1, 2)] * 2, f"FEED-43, window {window}"
    has = [window for window in range(20) if store().check([f"phalanx-stream/small/votes/{window}"])]
    assert has == [19], "FEED-45"


def test_rows_come_once_and_what_needs_them_twice_is_refused(feed: Any) -> None:
    feeder = feed(numbered(0, 9))
    loader = loader_of(feeder)
    assert len(list(loader)) == 2
    with pytest.raises(
        RuntimeError, match="is streamed, so its rows come once, and this rank has already begun"
    ):
        iter(loader)  # FEED-55
    with pytest.raises(TypeError, match="its number of steps is not known before its end"):
        len(loader)
    for refused in (loader.state_dict, lambda: loader.load_state_dict({}), lambda: loader.set_epoch(1)):
        with pytest.raises(RuntimeError, match=r"its rows come once; pass the DataFrame without streamed"):
            refused()
    loader.set_epoch(0)
    assert loader.epoch == 0
    for shuffle in (True, "full"):
        with pytest.raises(ValueError, match=r"shuffle them in Spark \(df.orderBy\(rand\(\)\)\)"):
            loader_of(feeder, shuffle=shuffle)
    with pytest.raises(ValueError, match="uneven is 'maybe'"):
        loader_of(feeder, uneven="maybe")


def test_a_second_process_of_a_rank_is_refused(feed: Any) -> None:
    feeder = feed(numbered(0, 1 << 18, 1 << 16))  # more than goes into a socket
    first = wire.connect(feeder.address)
    first.sendall(wire.frame(wire.HELLO, b"0"))
    assert wire.receive(first)[0] == wire.BATCH
    with pytest.raises(RuntimeError, match="have been taken by another process of rank 0"):  # FEED-55
        list(loader_of(feeder))
    first.close()


def test_torchs_data_loader_takes_it_without_workers_only(feed: Any) -> None:
    from torch.utils.data import DataLoader

    feeder = feed(numbered(0, 20))
    batches = list(DataLoader(BatchDataset(loader_of(feeder)), batch_size=None))
    assert [batch["i"].tolist() for batch in batches] == [list(range(at, at + 4)) for at in range(0, 20, 4)]
    workers = DataLoader(
        BatchDataset(loader_of(feeder, source=StreamSource("train", "nowhere"))), None, num_workers=1
    )
    with pytest.raises(RuntimeError, match="use num_workers=0"):
        list(workers)


def test_arrays_have_one_length_or_what_becomes_of_them_is_said(feed: Any) -> None:
    def of(*rows: Any) -> list[Any]:
        return [pa.RecordBatch.from_pydict({"x": pa.array([row], pa.list_(pa.int32()))}) for row in rows]

    def batches(rows: list[Any], **options: Any) -> list[Any]:
        return [batch["x"] for batch in loader_of(feed(rows), batch_size=2, **options)]

    assert [x.tolist() for x in batches(of([1, 2], [3, 4], [5, 6], [7, 8]))] == [
        [[1, 2], [3, 4]],
        [[5, 6], [7, 8]],
    ]
    uneven = of([1, 2], [3, 4], [5], [6, 7, 8])
    with pytest.raises(
        ValueError, match=r"column 'x' of the data set 'train' has arrays of 2 and of 1 elements"
    ):
        batches(uneven)  # FEED-52
    assert [x.tolist() for x in batches(uneven, pad=0)] == [[[1, 2], [3, 4]], [[5, 0, 0], [6, 7, 8]]]
    assert [[row.tolist() for row in x] for x in batches(uneven, pad="list")] == [
        [[1, 2], [3, 4]],
        [[5], [6, 7, 8]],
    ]
    assert all(x.is_nested for x in batches(uneven, pad="jagged"))


def test_nulls_text_masks_and_transforms_are_as_with_blocks(feed: Any) -> None:
    columns = {
        "f": pa.array([1.5, None, 3.5], pa.float32()),
        "s": ["a", None, "c"],
        "day": pa.array([1, 2, 3], pa.date32()),
    }
    rows = [pa.RecordBatch.from_pydict(columns)]
    with pytest.raises(ValueError, match="the column 'f' of the data set 'train' has 1 nulls"):
        list(loader_of(feed(rows), batch_size=3))
    (batch,) = loader_of(feed(rows), batch_size=3, nulls=-1)
    assert batch["f"].tolist() == [1.5, -1.0, 3.5]
    assert batch["f"].dtype is torch.float32
    assert batch["s"] == ["a", None, "c"]
    assert batch["day"].dtype is torch.int32
    made = list(
        loader_of(feed(rows), batch_size=2, uneven="pad", transform=lambda rows: {"n": rows.num_rows})
    )
    assert [(one["n"], one["mask"].tolist()) for one in made] == [(2, [True, True]), (2, [True, False])]
    with pytest.raises(TypeError, match="a transform has to return a dictionary"):
        list(loader_of(feed(rows), batch_size=2, uneven="pad", transform=lambda rows: rows.num_rows))
    masked = [pa.RecordBatch.from_pydict({"mask": [1, 2]})]
    with pytest.raises(ValueError, match="has a column 'mask'"):
        list(loader_of(feed(masked), batch_size=2, uneven="pad"))


def test_a_slow_rank_holds_its_task_back_and_one_that_has_left_ends_the_reading(feed: Any) -> None:
    read = []

    def batches() -> Iterator[Any]:
        for number in range(1000):
            read.append(number)
            yield pa.RecordBatch.from_pydict({"x": pa.array([b"x" * (1 << 18)] * 4)})  # 1 MiB

    feeder = feed(batches())
    steps = iter(loader_of(feeder))
    next(steps)

    def settled() -> bool:
        before = len(read)
        time.sleep(0.3)
        return len(read) == before

    eventually("the task waits", 20, settled)
    assert len(read) < 60, "FEED-47, FEED-53"
    before = len(read)
    del steps  # the rank leaves its loop
    eventually("the task reads no more", 10, lambda: not feeder._thread.is_alive())
    assert len(read) <= before + 2, "FEED-49"


def test_ranks_that_never_ask_hold_nobody(feed: Any) -> None:
    feeder = feed(numbered(0, 100), 2)
    began = time.monotonic()
    feeder.close()
    assert time.monotonic() < began + 5, "FEED-49"


def test_an_end_that_nobody_has_said_is_an_error() -> None:
    address = wire.new_address()
    with wire.listen(address) as listening:

        def breaks() -> None:
            listening.setblocking(True)
            connection, _ = listening.accept()
            body = wire.HEADER.pack(wire.BATCH, 1000) + b"half of it"
            connection.sendall(body)
            connection.recv(100)
            connection.close()

        thread = threading.Thread(target=breaks)
        thread.start()
        with pytest.raises(RuntimeError, match="broke off: after 0 rows the Spark task"):
            list(StreamSource("train", address).batches(0))  # FEED-58, FEED-56
        thread.join(10)
    with pytest.raises(RuntimeError, match="broke off"):
        list(StreamSource("train", address).batches(0))


def test_a_task_whose_input_fails_ends_and_its_rank_hears_of_no_end() -> None:
    script = """
import pyarrow as pa, sys, threading
from phalanx.feeding.stream import feeder as stream_feeder
from phalanx.feeding.stream.source import StreamSource
stream_feeder.SPARK_ENDS_S = 1.0
def broken():
    yield pa.RecordBatch.from_pydict({"i": [1, 2]})
    raise EOFError("Spark has closed the input")
feeder = stream_feeder.Feeder(broken(), 1, "train")
for batch in StreamSource("train", feeder.address).batches(0):
    print(batch.num_rows, flush=True)
print("an end")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "2\n"), "FEED-50"
    assert (
        "Spark could not compute the data set 'train' to its end (Spark has closed the input)" in done.stderr
    )


def test_a_pass_that_is_held_to_the_end_of_its_process_ends_its_thread() -> None:
    script = """
import atexit, itertools, threading
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
import pyarrow as pa
from phalanx.feeding.stream.feeder import Feeder
from phalanx.feeding.source import StreamedDataSet
from phalanx.feeding.stream.source import StreamSource
feeder = Feeder(itertools.repeat(pa.RecordBatch.from_pydict({"i": [1] * 1000})), 1, "train")
steps = iter(StreamedDataSet(StreamSource("train", feeder.address)).loader(batch_size=10))
assert next(steps)["i"].tolist() == [1] * 10
assert "phalanx-stream" in [thread.name for thread in threading.enumerate()]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "MainThread" in done.stdout
    assert "phalanx-stream" not in done.stdout, "FEED-54"


def test_another_user_is_not_let_in(feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feeder = feed(numbered(0, 10))
    monkeypatch.setattr(wire, "is_own_user", lambda _: False)
    with pytest.raises(wire.StreamBroken, match="it belongs to another user"):
        wire.connect(feeder.address)  # FEED-57
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(f"\0{feeder.address}")
    stranger.settimeout(10)
    assert stranger.recv(1) == b"", "FEED-57"
    stranger.close()
