"""Where a model computes: on processors, or on the GPU that Spark gave the tasks that ask it.

What a GPU is asked is begun, and done later. So inputs go there beside what is computed, on a stream of their own and
out of pinned memory, and outputs come into such memory behind it (SCORE-26, in rust/scoring/src/computing.rs).

SCORE-22 (halved): where a GPU has not enough memory for a batch, the model is given its halves, and so on; the process
says so, and gives it no larger ones from then on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

ENV_VISIBLE = "CUDA_VISIBLE_DEVICES"

_T = TypeVar("_T")


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
        if not self._moves:
            return model
        self._copies = self._torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return model.to(self._name)

    @property
    def ahead(self) -> int:
        """How many batches are begun while one is computed."""
        return int(self._moves)

    def given(self, values: np.ndarray[Any, Any]) -> Any:
        """A tensor of these numbers as the model wants it, in memory of its own: it may keep that, and write there."""
        torch = self._torch
        if not self._moves:
            return torch.from_numpy(values.copy())
        kind = torch.from_numpy(np.empty(0, values.dtype)).dtype
        pinned = torch.empty(values.shape, dtype=kind, pin_memory=True)
        pinned.numpy()[...] = values
        with torch.cuda.stream(self._copies):
            there = pinned.to(self._name, non_blocking=True)
        computing = torch.cuda.current_stream()
        computing.wait_stream(self._copies)
        there.record_stream(computing)
        return there

    def taken(self, value: Any) -> Any:
        """What the model returned, out of the GPU; a tensor has its values once `begun` is waited for."""
        if not isinstance(value, self._torch.Tensor):
            return value
        # A copy also where it is out: the model may use the memory again for the batch that is begun next.
        return value.detach().to("cpu", non_blocking=True, copy=self._moves)

    def begun(self) -> Callable[[], None]:
        """A wait for all that the GPU was asked for so far."""
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return lambda: None
        event = cuda.Event(blocking=True)  # a wait that takes no processor
        event.record()
        wait: Callable[[], None] = event.synchronize
        return wait

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """How a model is called."""
        torch = self._torch
        with torch.inference_mode(), contextlib.ExitStack() as stack:
            if self._autocast is not None:
                stack.enter_context(torch.autocast(self._name, getattr(torch, self._autocast)))
            yield

    def by_halves(self, rows: int, call: Callable[[int, int], _T]) -> list[tuple[int, _T]]:
        """What `call` returns for rows from the first one to the second: for all, or for parts of them, with how many
        rows each has (SCORE-22)."""
        if rows > self._most:
            return self._in_parts(rows, call, self._most)
        try:
            return [(rows, call(0, rows))]
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

    def _in_parts(self, rows: int, call: Callable[[int, int], _T], most: int) -> list[tuple[int, _T]]:
        parts = []
        for start in range(0, rows, most):

            def part(first: int, last: int, start: int = start) -> _T:
                return call(start + first, start + last)

            parts += self.by_halves(min(most, rows - start), part)
        return parts
