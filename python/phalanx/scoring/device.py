"""Where a model computes: on processors, or on the GPU that Spark gave the tasks that ask it.

SCORE-22 (halved): where a GPU has not enough memory for a batch, the model is given its halves, and so on; the process
says so, and gives it no larger ones from then on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

ENV_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Device:
    """`gpu` is its name in `CUDA_VISIBLE_DEVICES`, None for processors; `autocast` a type of torch's by name, or None.

    Raises `RuntimeError` where torch finds no such GPU.
    """

    def __init__(self, gpu: str | None, autocast: str | None) -> None:
        self._autocast = autocast
        self._moves = False
        self._most = sys.maxsize
        if gpu is not None:
            os.environ[ENV_VISIBLE] = gpu
        import torch

        self._torch = torch
        self._name = "cpu" if gpu is None else "cuda"
        if gpu is not None and not torch.cuda.is_available():
            raise RuntimeError(
                f"Spark gave the tasks the GPU {gpu}, and torch {torch.__version__} finds none here"
            )

    def placed(self, model: Any) -> Any:
        """A model that is there; a function has to know by itself where it computes."""
        self._moves = self._name != "cpu" and isinstance(model, self._torch.nn.Module)
        return model.to(self._name) if self._moves else model

    def given(self, tensor: Any) -> Any:
        """A tensor as the model wants it: a copy to a GPU goes beside what is computed, out of pinned memory."""
        return tensor.pin_memory().to(self._name, non_blocking=True) if self._moves else tensor

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """How a model is called."""
        torch = self._torch
        with torch.inference_mode(), contextlib.ExitStack() as stack:
            if self._autocast is not None:
                stack.enter_context(torch.autocast(self._name, getattr(torch, self._autocast)))
            yield

    def by_halves(self, rows: int, call: Callable[[int, int], list[Any]]) -> list[Any]:
        """What `call` returns for rows from the first one to the second: a list of arrays, as one call's (SCORE-22)."""
        if rows > self._most:
            return self._joined(rows, call, self._most)
        try:
            return call(0, rows)
        except self._torch.OutOfMemoryError:
            if rows == 1:
                raise
        # Outside of the handler, which holds what the failed call had.
        if self._name != "cpu":
            self._torch.cuda.empty_cache()
        self._most = (rows + 1) // 2
        line = f"[phalanx] the GPU's memory is too small for {rows} rows; the model is given {self._most} at once"
        print(line, file=sys.stderr, flush=True)
        return self.by_halves(rows, call)

    def _joined(self, rows: int, call: Callable[[int, int], list[Any]], most: int) -> list[Any]:
        parts = []
        for start in range(0, rows, most):
            count = min(most, rows - start)

            def part(first: int, last: int, start: int = start) -> list[Any]:
                return call(start + first, start + last)

            parts.append(self.by_halves(count, part))
        return [_concatenated(columns) for columns in zip(*parts, strict=True)]


def _concatenated(columns: tuple[Any, ...]) -> Any:
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    import pyarrow as pa

    return pa.concat_arrays(
        [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns]
    )
