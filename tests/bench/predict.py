"""Rows that a model scores: ours beside other ways of Spark's, with a model that returns what it is given.

    python tests/bench/predict.py [--quick] [--reps N] [CASE...]

The data sets are those of data.py. Each way reads the Parquet files, gives the model batches and writes the outputs to
Spark's `noop`; all take turns in one session on this machine. A model that does nothing shows what the way costs.

`phalanx` asks the model from the executors' JVMs (jvm) and from Python workers (python), where rows are small also with
batches of 10,000, as `mapInArrow` has. `mapInArrow` is written by hand: to the same tensors and lists, and back.
`predict_batch_udf` is pyspark's, in three sizes of batches, and `ours of that name` the drop-in for it. `spark_udf` is
MLflow's, of a model that returns what it is given. `pandas_udf` is an iterator's. `arrow_udf of nothing` returns its
columns, in the plan that `phalanx, python` has: so much is Spark's own.

`net` scores the floats with a module of 25 million parameters. `loop` is torch alone over the same rows in memory, and
`feed` a model that does nothing; together they are a bound. `first rows` is the time until a second `phalanx.predict`
of the same module has its first five rows, and that until Spark alone has five of the table. `resnet` scores images of
224 by 224 with a net of ResNet-50's shape.
"""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Report, interleaved, note
from data import ROWS, generated
from launch import quiet_builder
from phalanx import spark_conf

BATCH = 1024
# pyspark's batches never cross one of Arrow's, of 10,000 rows.
PYSPARK_BATCHES = (256, 1024, 10_000)
OUTPUTS = {
    "numbers": "out array<double>",
    "floats": "out array<float>",
    "text": "a string, b string",
    "bytes": "out binary",
}


def inputs_of(case: str) -> str | list[str]:
    if case == "numbers":
        return [*(f"f{at}" for at in range(5)), *(f"d{at}" for at in range(5)), "label"]
    return {"floats": "x", "bytes": "x"}.get(case) or ["q", "t"]


def identity(case: str) -> Any:
    """A module that returns what it is given. A module's process stays from one query to the next."""
    import torch

    class Identity(torch.nn.Module):
        def forward(self, batch: Any) -> Any:
            if case == "numbers":
                return torch.stack([column.double() for column in batch.values()], 1)
            return tuple(batch.values()) if isinstance(batch, dict) else batch

    return Identity()


def by_hand(case: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa
        import torch

        for batch in batches:
            if case == "numbers":
                columns = [torch.from_numpy(c.to_numpy().copy()).double() for c in batch.columns]
                flat = torch.stack(columns, 1)
            elif case == "floats":
                column = batch.column(0)
                flat = torch.from_numpy(column.flatten().to_numpy().copy()).reshape(len(column), -1)
            else:
                lists = [pa.array(column.to_pylist()) for column in batch.columns]
                yield pa.RecordBatch.from_arrays(lists, ["a", "b"] if case == "text" else ["out"])
                continue
            ends = pa.array(np.arange(len(flat) + 1, dtype=np.int32) * flat.shape[1])
            array = pa.ListArray.from_arrays(ends, pa.array(flat.numpy().reshape(-1)))
            yield pa.RecordBatch.from_arrays([array], ["out"])

    return rows


class Ways:
    """The ways to score a data set."""

    def __init__(self, spark: Any, case: str, folder: str) -> None:
        self.spark, self.case, self.folder = spark, case, folder
        self.inputs = inputs_of(case)
        self.model = identity(case)
        self.names = [self.inputs] if isinstance(self.inputs, str) else self.inputs

    @property
    def frame(self) -> Any:
        return self.spark.read.parquet(self.folder)

    def phalanx(self, over: str, size: int = BATCH) -> float:
        import phalanx

        self.spark.conf.set("spark.phalanx.stage", over)
        scored = phalanx.predict(
            self.frame, self.model, inputs=self.inputs, outputs=OUTPUTS[self.case], batch_size=size
        )
        return rate(scored.select(*scored.columns[-(2 if self.case == "text" else 1) :]))

    def by_hand(self) -> float:
        return rate(self.frame.select(*self.names).mapInArrow(by_hand(self.case), OUTPUTS[self.case]))

    def batch_udf(self, module: str, size: int) -> float:
        import importlib

        from pyspark.sql import functions as f
        from pyspark.sql.types import _parse_datatype_string

        make: Any = importlib.import_module(module).predict_batch_udf
        case = self.case

        def factory() -> Callable[..., Any]:
            if case == "text":
                return lambda q, t: {"a": q, "b": t}
            return lambda x: x

        kind: Any = _parse_datatype_string(OUTPUTS[case])
        # Several columns are several arguments there, so numbers come as one array.
        shapes = {"floats": [[784]], "numbers": [[len(self.names)]]}.get(case)
        made = make(
            factory,
            return_type=kind if case == "text" else kind.fields[0].dataType,
            batch_size=size,
            input_tensor_shapes=shapes,
        )
        columns: list[Any] = list(self.names)
        if case == "numbers":
            columns = [f.array(*(f.col(name).cast("double") for name in self.names))]
        return rate(self.frame.select(made(*columns).alias("out")))

    def as_it_came(self) -> float:
        """Spark's own share where Python workers score: the same plan, with a function that returns its columns."""
        import pyarrow as pa
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.functions import ArrowUDFType

        names = self.names

        def together(batches: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
            return (pa.StructArray.from_arrays(columns, names) for columns in batches)

        schema = self.frame.select(*names).schema
        is_one = len(names) == 1
        made: Any = f.arrow_udf(
            (lambda arrays: arrays) if is_one else together,
            schema.fields[0].dataType if is_one else schema,
            ArrowUDFType.SCALAR_ITER,
        )
        return rate(self.frame.filter(f.spark_partition_id() >= 0).select(made(*names).alias("out")))

    def mlflow(self) -> float:
        """MLflow's function of pandas; it returns no bytes."""
        import mlflow

        kind = OUTPUTS[self.case] if self.case == "text" else OUTPUTS[self.case].partition(" ")[2]
        made: Any = mlflow.pyfunc.spark_udf(self.spark, self._saved, result_type=kind, env_manager="local")
        return rate(self.frame.select(made(*self.names).alias("out")))

    @cached_property
    def _saved(self) -> str:
        """The folder of a model of MLflow's that returns what it is given."""
        import mlflow

        case = self.case

        class Identity(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
            def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
                import numpy as np
                import pandas as pd

                columns = [column for _, column in model_input.items()]
                if case == "text":
                    return pd.DataFrame({"a": columns[0], "b": columns[1]})
                if case == "numbers":
                    return np.stack([column.to_numpy(float) for column in columns], 1)
                return np.stack(columns[0].tolist())

        folder = tempfile.mkdtemp(prefix="phalanx-bench-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        mlflow.pyfunc.save_model(f"{folder}/model", python_model=Identity(), pip_requirements=[])
        return f"{folder}/model"

    def pandas(self) -> float:
        import pandas as pd
        from pyspark.sql.functions import pandas_udf
        from pyspark.sql.types import _parse_datatype_string

        case = self.case
        kind: Any = _parse_datatype_string(OUTPUTS[case])

        def scored(batches: Iterator[Any]) -> Iterator[Any]:
            import numpy as np

            for batch in batches:
                if case == "numbers":
                    yield pd.Series(list(np.stack([column.to_numpy(float) for column in batch], 1)))
                elif case == "text":
                    yield pd.DataFrame({"a": batch[0].tolist(), "b": batch[1].tolist()})
                elif case == "floats":
                    yield pd.Series(list(np.stack(batch.tolist())))
                else:
                    yield pd.Series(batch.tolist())

        made = pandas_udf(scored, kind if case == "text" else kind.fields[0].dataType, functionType=204)
        return rate(self.frame.select(made(*self.names).alias("out")))


def rate(frame: Any) -> float:
    """Rows a second of what is written to nowhere."""
    counted = COUNTS[0]
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return counted / (time.monotonic() - began)


# How large an image is, of three colours.
SIDE = 224

# How many rows the data set of the case has.
COUNTS = [0]


def in_memory(rows: Any) -> tuple[Any, int]:
    """Rows that Spark has in memory in two partitions, and how many."""
    frame = rows.repartition(2).cache()
    return frame, frame.count()


def net(report: Report, spark: Any, folder: str, rows: int, repetitions: int) -> None:
    """A net of 25 million parameters over the floats."""
    import phalanx
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096), torch.nn.ReLU(),
        torch.nn.Linear(4096, 1280), torch.nn.ReLU(), torch.nn.Linear(1280, 10),
    )  # fmt: skip
    frame, counted = in_memory(spark.read.parquet(folder).limit(rows))
    beside_a_loop(report, "net", frame, counted, model, repetitions, size=BATCH, width=784)

    def first(over: str) -> float:
        spark.conf.set("spark.phalanx.stage", over)
        began = time.monotonic()
        # Rows come by the batch: one of 1,024 takes as long as the model needs for it.
        scored = phalanx.predict(frame, model, inputs="x", outputs="out array<float>", batch_size=16)
        scored.limit(5).collect()
        return time.monotonic() - began

    def first_of_spark() -> float:
        began = time.monotonic()
        frame.limit(5).collect()
        return time.monotonic() - began

    # A Python worker goes on for a while after its query has its rows, so it takes no turns with the others.
    for runs in (
        {"phalanx, jvm": partial(first, "jvm"), "Spark alone": first_of_spark},
        {"phalanx, python": partial(first, "python")},
    ):
        for impl, values in interleaved(runs, repetitions).items():
            report.add(impl, "net", "first rows", "s", values)
    frame.unpersist()


def resnet(report: Report, spark: Any, rows: int, repetitions: int) -> None:
    """A net of ResNet-50's shape over images."""
    import torch
    from resnet import ResNet50

    def images(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        for batch in batches:
            draw = np.random.default_rng(1).random((len(batch), SIDE * SIDE * 3), dtype=np.float32)
            yield pa.RecordBatch.from_arrays([pa.array(list(draw))], ["x"])

    torch.manual_seed(1)
    frame, counted = in_memory(spark.range(0, rows, 1, 2).mapInArrow(images, "x array<float>"))
    model = ResNet50(SIDE).eval()
    beside_a_loop(report, "resnet", frame, counted, model, repetitions, size=16, width=SIDE * SIDE * 3)
    frame.unpersist()


def beside_a_loop(
    report: Report, case: str, frame: Any, rows: int, model: Any, repetitions: int, *, size: int, width: int
) -> None:
    """What is left of the speed of a model in a loop of torch's over rows in memory."""
    import numpy as np
    import phalanx
    import torch

    spark = frame.sparkSession

    def scored(by: Any, over: str) -> float:
        spark.conf.set("spark.phalanx.stage", over)
        began = time.monotonic()
        out = phalanx.predict(frame, by, inputs="x", outputs="out array<float>", batch_size=size)
        out.select("out").write.format("noop").mode("overwrite").save()
        return rows / (time.monotonic() - began)

    data = torch.from_numpy(np.random.default_rng(1).random((rows, width), dtype=np.float32))

    def looped() -> float:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        began = time.monotonic()
        with torch.inference_mode():
            for batch in data.split(size):
                model(batch)
        return rows / (time.monotonic() - began)

    feeding = identity("floats")
    faces = ("jvm", "python")
    runs = {f"phalanx, {over}": partial(scored, model, over) for over in faces}
    runs |= {f"feed, {over}": partial(scored, feeding, over) for over in faces} | {"loop": looped}
    for run in runs.values():
        run()
    values = interleaved(runs, repetitions)
    for impl, found in values.items():
        report.add(impl, case, "rows", "rows/s", found)
    for over in faces:
        pairs = zip(values["loop"], values[f"feed, {over}"], strict=True)
        bound = [1 / (1 / loop + 1 / feed) for loop, feed in pairs]
        report.add(f"1/(1/loop + 1/feed), {over}", case, "rows", "rows/s", bound)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join([*ROWS, "net", "resnet"]))
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the rows, and one repetition unless --reps says"
    )
    parser.add_argument("--reps", type=int)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    )
    report = Report("predict")
    spark = (
        quiet_builder("local[2]").config("spark.driver.memory", "6g").config(map=spark_conf()).getOrCreate()
    )
    repetitions = options.reps or (1 if options.quick else 3)
    for case in options.cases or [*ROWS, "net", "resnet"]:
        if case == "resnet":
            resnet(report, spark, 64 if options.quick else 256, repetitions)
            continue
        source = "floats" if case == "net" else case
        rows = ROWS[source] // (4 if options.quick else 1)
        folder = generated(spark, source, rows)
        COUNTS[0] = rows
        if case == "net":
            net(report, spark, folder, 4_000 if options.quick else 16_000, repetitions)
            continue
        ways = Ways(spark, case, folder)
        runs: dict[str, Callable[[], float]] = {
            "phalanx, jvm": partial(ways.phalanx, "jvm"),
            "phalanx, python": partial(ways.phalanx, "python"),
            "mapInArrow by hand": ways.by_hand,
            "arrow_udf of nothing": ways.as_it_came,
            "pandas_udf": ways.pandas,
        }
        if case in ("numbers", "text"):
            for over in ("jvm", "python"):
                runs[f"phalanx, {over}, 10,000"] = partial(ways.phalanx, over, 10_000)
        if case != "bytes":
            for size in PYSPARK_BATCHES:
                runs[f"predict_batch_udf {size}"] = partial(ways.batch_udf, "pyspark.ml.functions", size)
            runs["spark_udf"] = ways.mlflow
            runs["ours of that name, 1024"] = partial(ways.batch_udf, "phalanx", 1024)
        for impl, run in runs.items():
            note(f"{case}: {impl}, once before")
            run()
        for impl, values in interleaved(runs, repetitions).items():
            report.add(impl, case, "rows", "rows/s", values)
    spark.stop()
    report.table()


if __name__ == "__main__":
    main()
