"""Tasks and a model's process as `phalanx.predict` has them in an executor, without Spark."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from bench.resnet import ResNet50
from phalanx.scoring.connection import ModelProcess, Place
from phalanx.scoring.model import given_model
from phalanx.scoring.preprocessed import Preprocessed
from phalanx.scoring.shipping import ShippedModel
from phalanx.scoring.task import scored
from phalanx.scoring.tensors import Tensors

DIFFERENT = 32
WITHIN_S = 45.0


class Images(torch.nn.Module):
    """Scores images of bytes, colour by colour, by a net of ResNet-50's shape."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.net = ResNet50(side)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(images.float() / 127.5 - 1)
        return scores


class Hungry(torch.nn.Module):
    """The sum of each row; takes so many bytes of the device for each."""

    def __init__(self, bytes_a_row: int) -> None:
        super().__init__()
        self.bytes_a_row = bytes_a_row

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        torch.empty(len(rows) * self.bytes_a_row, dtype=torch.uint8, device=rows.device)
        return rows.sum(1)


def jpegs(side: int) -> list[bytes]:
    """Different images of as many bytes as photographs have."""
    from PIL import Image

    draw = np.random.default_rng(1)
    found = []
    for _ in range(DIFFERENT):
        coarse = draw.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def decoded(images: list[bytes]) -> torch.Tensor:
    """What a task makes of them, beside the model."""
    from PIL import Image

    pixels = [np.asarray(Image.open(io.BytesIO(image))).transpose(2, 0, 1) for image in images]
    return torch.from_numpy(np.stack(pixels))


class Scorer(NamedTuple):
    """What a task knows of a model."""

    key: str
    packed: bytes
    gpu: str | None
    batch_size: int

    @staticmethod
    def of(model: torch.nn.Module, gpu: str | None, batch_size: int) -> Scorer:
        given = given_model(model.eval())
        return Scorer(given.key, given.packed, gpu, batch_size)

    def scores(self, column: Iterator[pa.Array], preprocess: Callable[[Any], Any]) -> Iterator[pa.Array]:
        """The model's outputs for the arrays of a column, as they come."""
        told = {
            "idle": 60.0,
            "threads": 0,
            "sys_path": [os.path.abspath(entry) for entry in sys.path],
            "autocast": None,
            "processes": 1,
            "format": "payload",
        }
        way = Preprocessed(
            Tensors("x", [], nulls="error", pad=None),
            preprocess,
            pa.schema([("y", pa.list_(pa.float32()) if preprocess is decoded else pa.float32())]),
            batch_size=self.batch_size,
            on_error="raise",
        )
        batches = ((pa.RecordBatch.from_arrays([array], ["x"]), ()) for array in column)
        process = ModelProcess(self.key, ShippedModel(self.packed), told, Place(self.gpu, 0))
        with contextlib.closing(process):
            for _, outputs in scored(process, way, batches):
                yield outputs[0]


class Tasks:
    """Processes that decode images and have them scored, without an end."""

    def __init__(self, scorer: Scorer, side: int, count: int) -> None:
        self._images = jpegs(side)
        self._scorer = scorer
        self._rows = multiprocessing.Array("q", count)
        # What has no thread may be forked: all that is imported is there.
        context = multiprocessing.get_context("fork")
        self._ends: list[Connection] = []
        self._processes = []
        for number in range(count):
            own, other = context.Pipe(duplex=False)
            process = context.Process(target=self._score, args=(number, other), daemon=True)
            process.start()
            other.close()
            self._ends.append(own)
            self._processes.append(process)

    def _score(self, number: int, told: Connection) -> None:
        batch = pa.array(
            (self._images * (self._scorer.batch_size // DIFFERENT + 1))[: self._scorer.batch_size]
        )
        for at, scores in enumerate(self._scorer.scores(iter(lambda: batch, None), decoded)):
            if at == 0:
                told.send(scores.slice(0, DIFFERENT).to_pylist())
            self._rows[number] += len(scores)

    def first(self) -> list[torch.Tensor]:
        """What each task got for the images, once all have some."""
        until, found = time.monotonic() + WITHIN_S, []
        for end, process in zip(self._ends, self._processes, strict=True):
            assert end.poll(max(0.0, until - time.monotonic())), "a task has no outputs; the log says why"
            try:
                found.append(torch.tensor(end.recv()))
            except EOFError:
                process.join()
                raise AssertionError(f"a task ended with {process.exitcode}; the log says why") from None
        return found

    def expected(self, net: torch.nn.Module) -> torch.Tensor:
        with torch.inference_mode():
            outputs: torch.Tensor = net(decoded(self._images))
        return outputs

    def rows(self) -> int:
        return sum(self._rows)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
