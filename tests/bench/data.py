"""Rows of a DataFrame into two ranks: ours beside other ways from the same Parquet files to batches of tensors.

    python tests/bench/data.py [--quick] [--reps N] [--peers | --setup-peers] [CASE...]

Four data sets, each of eight Parquet files: `numbers` (5 floats, 5 doubles, a bigint: 68 bytes a row), `floats` (784
floats), `text` (two strings), `bytes` (12 KiB of binary). Batches have 256 rows; nothing is trained. Strings and binary
come as lists from ours, and binary as a tensor from the tables in memory, which is cheaper. All take turns, within one
Spark session on this machine, and each rank computes with one thread.

`first epoch` has all of ours in it: the Spark job that makes the blocks, from the call on, and the shuffled pass. The
executors' JVMs make them; `phalanx, Python workers` is with `spark.phalanx.stage=python`, as where the jar isn't.
`Spark's Arrow` is how long Spark's JVM takes to turn the same DataFrame into Arrow batches and to count them: nobody
who takes them from there is faster. `Spark's scan` only reads the rows, and makes nothing of them.

`phalanx, streamed` is the one pass over `phalanx.streamed`, not shuffled, from the
call on: of files that Spark reads in two partitions; with `repartition`, as where it reads them in more. `later epochs`
are passes by ranks that run already: ours shuffled, by `shuffle=True`; `table, gathered` reads its half of the files
into memory before the clock starts, and takes rows in a random order; `Parquet stream` is pyarrow's reader, in the
order of the files. pyspark's `_train_on_dataframe` takes numbers only, and isn't shuffled either; its default has one
worker process.

`--peers` has Petastorm, Mosaic, Ray and Hugging Face's datasets take their turns, too, those whose environments are
there; `--setup-peers` makes these first (tests/bench/data_peers.py). All of them shuffle as they can: Mosaic and
Hugging Face over all rows, Petastorm and Ray within a buffer of 4,096. Their later epochs come after one that isn't
measured; a pass that takes more than 8 s (Ray's: 60 s) is left, and its beginning counts. `conversion` is into a form
of their own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import data_peers
from common import ROOT, Quiet, Report, note
from launch import quiet_builder
from passes import BATCH, files_of_this_rank, measured

FILES = 8
ROWS = {"numbers": 6_000_000, "floats": 200_000, "text": 2_000_000, "bytes": 60_000}
COLUMNS = {
    "numbers": ", ".join([*(f"f{i} float" for i in range(5)), *(f"d{i} double" for i in range(5))]),
    "floats": "x array<float>",
    "text": "q string, t string",
    "bytes": "x binary",
}
# What pyspark's converter takes.
NUMERIC = ("numbers", "floats")
METRICS = {"first epoch": "first epoch", "later": "later epochs", "converted": "conversion"}
# How long the passes of later epochs are measured, at least.
SECONDS = 3.0


def make(case: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Turns ids into rows; the same ones each time."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        words = np.array(
            ["rows", "go", "from", "frames", "to", "ranks", "in", "columns", "not", "one", "by", "one"]
        )
        for batch in batches:
            ids = batch.column(0)
            count, draw = len(ids), np.random.default_rng(ids[0].as_py())
            made: dict[str, Any] = {}
            if case == "numbers":
                made |= {f"f{i}": pa.array(draw.random(count, dtype=np.float32)) for i in range(5)}
                made |= {f"d{i}": pa.array(draw.random(count)) for i in range(5)}
            elif case == "floats":
                ends = pa.array(np.arange(count + 1, dtype=np.int32) * 784)
                made["x"] = pa.ListArray.from_arrays(
                    ends, pa.array(draw.random(count * 784, dtype=np.float32))
                )
            elif case == "text":
                for name, most in (("q", 9), ("t", 24)):
                    sizes = draw.integers(3, most, count)
                    made[name] = pa.array([" ".join(draw.choice(words, size)) for size in sizes])
            else:
                raw = draw.bytes(count * 12288)
                made["x"] = pa.array([raw[at : at + 12288] for at in range(0, len(raw), 12288)], pa.binary())
            yield pa.RecordBatch.from_pydict({**made, "label": ids})

    return rows


def generated(spark: Any, case: str, rows: int) -> str:
    """The folder of a data set's Parquet files, which stay for the next time."""
    folder = ROOT / "target" / "bench-data" / f"{case}-{rows}"
    if not (folder / "_SUCCESS").exists():
        frame = spark.range(0, rows, 1, FILES)
        frame.mapInArrow(make(case), f"{COLUMNS[case]}, label bigint").write.mode("overwrite").parquet(
            str(folder)
        )
    return str(folder)


def with_phalanx(seconds: float) -> dict[str, float]:
    import phalanx
    import torch

    torch.set_num_threads(1)
    loader = phalanx.data("train").loader(batch_size=BATCH, shuffle=True, seed=1)
    batches = iter(loader)
    next(batches)
    first = time.time()
    for _ in batches:
        pass
    return {"first": first, "passed": time.time(), "later": measured(lambda: iter(loader), seconds)}


def with_stream() -> dict[str, float]:
    import phalanx
    import torch

    torch.set_num_threads(1)
    batches = iter(phalanx.data("train").loader(batch_size=BATCH))
    next(batches)
    first = time.time()
    rows = BATCH * (1 + sum(1 for _ in batches))
    return {"first": first, "passed": time.time(), "rows": rows}


def columns_of(batch: Any) -> dict[str, Any]:
    """An Arrow batch's columns: numpy arrays without a copy, Arrow's own where these can't be."""
    import numpy as np
    import pyarrow as pa

    found: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_list(column.type):
            found[name] = column.flatten().to_numpy().reshape(len(column), -1)
        elif pa.types.is_binary(column.type):
            ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
            whole = np.frombuffer(column.buffers()[2], np.uint8)[ends[0] : ends[-1]]
            found[name] = whole.reshape(len(column), -1)
        else:
            found[name] = column if pa.types.is_string(column.type) else column.to_numpy()
    return found


def with_table(folder: str, seconds: float) -> dict[str, float]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    torch.set_num_threads(1)
    table = pq.read_table(files_of_this_rank(folder)).combine_chunks()
    columns = {
        name: torch.from_numpy(np.array(column)) if isinstance(column, np.ndarray) else column
        for name, column in columns_of(table.to_batches()[0]).items()
    }

    def gathered() -> Iterator[dict[str, Any]]:
        order = torch.randperm(table.num_rows, generator=torch.Generator().manual_seed(1))
        for at in range(0, table.num_rows, BATCH):
            taken = order[at : at + BATCH]
            yield {
                name: column.index_select(0, taken)
                if isinstance(column, torch.Tensor)
                else column.take(pa.array(taken.numpy())).to_pylist()
                for name, column in columns.items()
            }

    return {"later": measured(gathered, seconds)}


def with_parquet(folder: str, seconds: float) -> dict[str, float]:
    import pyarrow.dataset as ds
    import torch

    torch.set_num_threads(1)

    def streamed() -> Iterator[dict[str, Any]]:
        for batch in ds.dataset(files_of_this_rank(folder)).to_batches(batch_size=16 * BATCH):
            columns = columns_of(batch)
            for at in range(0, batch.num_rows, BATCH):
                yield {
                    name: column[at : at + BATCH].to_pylist()
                    if not hasattr(column, "dtype")
                    else torch.from_numpy(column[at : at + BATCH].copy())
                    for name, column in columns.items()
                }

    return {"later": measured(streamed, seconds)}


def with_pyspark(workers: int, rows: int, seconds: float, folder: str) -> None:
    import torch
    from pyspark.ml.torch.distributor import _get_spark_partition_data_loader

    torch.set_num_threads(1)
    began, taken = time.monotonic(), 0
    for batch in _get_spark_partition_data_loader(rows, BATCH, workers):
        taken += len(batch[-1])
        if time.monotonic() > began + seconds:
            break
    rate = taken / (time.monotonic() - began)
    Path(folder, os.environ["RANK"]).write_text(json.dumps({"later": rate}))


class Session:
    """A Spark session, and what can be measured in it."""

    def __init__(self, seconds: float) -> None:
        import phalanx

        builder = quiet_builder("local[2]").config("spark.driver.memory", "6g")
        self.spark = phalanx.configure(builder).getOrCreate()
        self._seconds = seconds

    def frame(self, folder: str) -> Any:
        return self.spark.read.parquet(folder)

    def phalanx(self, folder: str, stage: str = "auto") -> dict[str, float]:
        from phalanx import TorchDistributor

        self.spark.conf.set("spark.phalanx.stage", stage)
        try:
            frame, began = self.frame(folder), time.time()
            run = TorchDistributor(2, local_mode=False, use_gpu=False).start(
                with_phalanx, self._seconds, data={"train": frame}
            )
            ranks = run.results()
        finally:
            self.spark.conf.unset("spark.phalanx.stage")
        prepared = {phase.name: phase.seconds for phase in run.phases}["data prepared"]
        return {
            "prepared": prepared,
            "first batch": max(rank["first"] for rank in ranks) - began - prepared,
            "first epoch": max(rank["passed"] for rank in ranks) - began,
            "later": sum(rank["later"] for rank in ranks),
        }

    def streamed(self, folder: str, repartition: bool) -> dict[str, float]:
        import phalanx
        from phalanx import TorchDistributor

        self.spark.conf.set("spark.sql.files.maxPartitionNum", "2")
        try:
            frame = self.frame(folder)
            assert frame.rdd.getNumPartitions() == 2
            began = time.time()
            data = {"train": phalanx.streamed(frame.repartition(2) if repartition else frame)}
            ranks = (
                TorchDistributor(2, local_mode=False, use_gpu=False).start(with_stream, data=data).results()
            )
        finally:
            self.spark.conf.unset("spark.sql.files.maxPartitionNum")
        return {
            "taken": sum(rank["rows"] for rank in ranks),
            "first batch": max(rank["first"] for rank in ranks) - began,
            "first epoch": max(rank["passed"] for rank in ranks) - began,
        }

    def beside(self, ranks: Callable[[str, float], dict[str, float]], folder: str) -> dict[str, float]:
        """Another way, in ranks that Phalanx starts."""
        from phalanx import TorchDistributor

        run = TorchDistributor(2, local_mode=True, use_gpu=False).start(ranks, folder, self._seconds)
        return {"later": sum(rank["later"] for rank in run.results())}

    def pyspark(self, folder: str, workers: int) -> dict[str, float]:
        from pyspark.ml.torch.distributor import TorchDistributor

        frame = self.frame(folder)
        with tempfile.TemporaryDirectory() as results:
            distributor: Any = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
            distributor._train_on_dataframe(
                with_pyspark, frame.repartition(2), workers, frame.count() // 2, self._seconds, results
            )
            ranks = [json.loads(path.read_text()) for path in Path(results).iterdir()]
        return {"later": sum(rank["later"] for rank in ranks)}

    def arrow(self, folder: str) -> dict[str, float]:
        frame, began = self.frame(folder), time.monotonic()
        frame._jdf.toArrowBatchRdd().count()
        return {"first epoch": time.monotonic() - began}

    def scan(self, folder: str) -> dict[str, float]:
        frame, began = self.frame(folder), time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        return {"first epoch": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, one repetition")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument(
        "--peers", action="store_true", help="other projects' loaders, too, where they are there"
    )
    parser.add_argument(
        "--setup-peers", action="store_true", help="as --peers, and installs what isn't there"
    )
    options = parser.parse_args()
    if options.setup_peers:
        data_peers.set_up()
    peers = [peer for peer in data_peers.PEERS if peer.is_there and (options.peers or options.setup_peers)]
    logging.disable(logging.WARNING)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Ranks import what all ways share.
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
    report = Report("data")
    seconds = 1.0 if options.quick else SECONDS
    session = Session(seconds)
    for case in options.cases or ROWS:
        rows = ROWS[case] // (4 if options.quick else 1)
        folder = generated(session.spark, case, rows)
        size = sum(column.nbytes for column in session.frame(folder).limit(1000).toArrow().columns) / 1000
        runs: dict[str, Callable[[], dict[str, float]]] = {
            "phalanx": lambda folder=folder: session.phalanx(folder),
            "phalanx, Python workers": lambda folder=folder: session.phalanx(folder, "python"),
            "phalanx, streamed": lambda folder=folder: session.streamed(folder, False),
            "phalanx, streamed, repartition": lambda folder=folder: session.streamed(folder, True),
            "Spark's Arrow": lambda folder=folder: session.arrow(folder),
            "Spark's scan": lambda folder=folder: session.scan(folder),
            "table, gathered": lambda folder=folder: session.beside(with_table, folder),
            "Parquet stream": lambda folder=folder: session.beside(with_parquet, folder),
        }
        if case in NUMERIC:
            runs["pyspark, 1 worker"] = lambda folder=folder: session.pyspark(folder, 1)
            runs["pyspark, 0 workers"] = lambda folder=folder: session.pyspark(folder, 0)
        runs |= {peer.name: lambda peer=peer, folder=folder: peer.measure(folder, seconds) for peer in peers}
        found: dict[str, list[dict[str, float]]] = {impl: [] for impl in runs}
        refused: dict[str, str] = {}
        # Once before for what compiles, and for the page cache; a peer has a first epoch by itself.
        for repetition in range(1 + (1 if options.quick else options.reps)):
            for impl, run in runs.items():
                if impl in refused or (repetition == 0 and impl in {peer.name for peer in peers}):
                    continue
                shown, sys.stdout = sys.stdout, Quiet()
                try:
                    one = run()
                except data_peers.Refused as reason:
                    refused[impl] = str(reason)
                    continue
                finally:
                    sys.stdout = shown
                if repetition > 0:
                    found[impl].append(one)
        for impl, ones in found.items():
            for metric, name in METRICS.items():
                values = [
                    one[metric] if metric == "later" else one.get("taken", rows) / one[metric]
                    for one in ones
                    if metric in one
                ]
                if values:
                    report.add(impl, case, name, "rows/s", values)
                    report.add(impl, case, f"{name}, bytes", "MB/s", [value * size / 1e6 for value in values])
        for impl, reason in refused.items():
            report.refused(impl, case, METRICS["later"], reason)
        for impl in ("phalanx", "phalanx, Python workers"):
            for metric in ("prepared", "first batch"):
                note(f"{case}: {impl}: {metric}: {', '.join(f'{one[metric]:.2f}' for one in found[impl])} s")
        for impl in ("phalanx, streamed", "phalanx, streamed, repartition"):
            firsts = ", ".join(f"{one['first batch']:.2f}" for one in found[impl])
            note(f"{case}: {impl}: first batch: {firsts} s")
    session.spark.stop()
    report.table()


if __name__ == "__main__":
    main()
