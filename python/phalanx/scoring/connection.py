"""A task's connection to the process of its model."""

from __future__ import annotations

import json
import mmap
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..stages.here import Home
from ..stages.spark_files import workers_files
from .arrow_outputs import WrongOutput
from .batch_memory import NewColumn, mapped, read, read_rows, write
from .parts import ModelFailed

if TYPE_CHECKING:
    from .shipping import ShippedModel


class NoModel(RuntimeError):
    """The model can't be had; the text ends with the traceback of who tried."""


class Place(NamedTuple):
    """Which of an executor's processes a task asks."""

    gpu: str | None
    """The one that Spark gave the task, as `CUDA_VISIBLE_DEVICES` names it."""
    number: int
    """Of several for the same GPU, or for none."""

    @staticmethod
    def of_task(processes: int) -> Place:
        """That of the task that runs here, where there are so many."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        if context is None:
            return Place(None, 0)
        gpu = context.resources().get("gpu")
        return Place(gpu.addresses[0] if gpu else None, context.partitionId() % processes)


class ModelProcess:
    """The process that has a model, to a task. It is started with the first batch, if it isn't there."""

    def __init__(self, key: str, model: ShippedModel, told: dict[str, Any], place: Place) -> None:
        self._native = _native.ModelConnection(
            f"model {key} {place.gpu or 'cpu'} {told['autocast']} {place.number}",
            json.dumps({**told, "gpu": place.gpu}),
            list(workers_files().items()),
            Home.find(in_python_worker=True),
            self._bring,
        )
        self._model = model
        self._brought: int | None = None
        self._given = self._taken = 0
        self._inputs: dict[int, mmap.mmap] = {}
        self._results: dict[int, mmap.mmap] = {}

    def _bring(self) -> int:
        self._let_go_of_model()
        self._brought = self._model.open()
        return self._brought

    def _let_go_of_model(self) -> None:
        """Closes what was brought: the process has the model by now, or never will."""
        if self._brought is not None:
            os.close(self._brought)
            self._brought = None

    def close(self) -> None:
        """Lets go of the process."""
        self._native.close()
        self._let_go_of_model()
        self._inputs.clear()
        self._results.clear()

    def call(self, what: str, arguments: bytes) -> Any:
        """Has it do what `serving.py` says, with pickled arguments. Raises as `take`."""
        self.give(1, [NewColumn(what, arguments)], what)
        return self.take()[0]

    def rows_at_once(self, batch_size: int) -> int:
        """How many rows to give next: those of one batch of so many for the model, or of several."""
        return self._native.rows_at_once(batch_size)

    def give(self, rows: int, columns: list[NewColumn], asked: str) -> None:
        """Gives it a batch, and says what is asked (`serving.py`); it has at most two without an answer.

        Raises `NoModel`, and `NativeError` where its process ends again and again.
        """
        slot = self._given % 2
        told, values = zip(*(column.written() for column in columns), strict=True) if columns else ((), ())
        memory, at = self._native.lay_out(slot, rows, told, asked)
        if memory is not None:
            self._inputs[slot] = mapped(memory, writable=True)
        write(self._inputs[slot], at, values)
        self._given += 1
        trouble = self._native.give(slot)
        self._let_go_of_model()
        if trouble is not None:
            raise NoModel("the model can't be had: {}\n\n{}".format(*trouble))

    def take(self) -> list[Any]:
        """The outputs of the oldest batch without an answer: numbers, or Arrow's arrays.

        Raises as `give`, `ModelFailed`, and `WrongOutput` where the model returned what it shouldn't.
        """
        memory, columns = self._answer("the model failed: ")
        return [read(memory, column) for column in columns]

    def take_rows(self) -> Any:
        """The same of one that was given as a record batch: another one."""
        memory, columns = self._answer("")
        return read_rows(memory, columns[0])

    def _answer(self, failed: str) -> tuple[mmap.mmap, list[Any]]:
        """Where the outputs are; `failed` is before what a model says that has failed."""
        slot = self._taken % 2
        answer = self._native.take()
        self._let_go_of_model()
        self._taken += 1
        if answer.trouble is not None:
            error, traceback = answer.trouble
            if not answer.has_model:
                raise NoModel(f"the model can't be had: {error}\n\n{traceback}")
            if failed and not traceback:  # a sentence of the process's own
                raise WrongOutput(error)
            raise ModelFailed(f"{failed}{error}\n\n{traceback}".rstrip())
        if answer.memory is not None:
            self._results[slot] = mapped(answer.memory, writable=False)
        return self._results[slot], answer.columns
