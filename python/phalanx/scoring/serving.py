"""Batch after batch: from a task's memory into tensors, through the model, into memory again.

What a task asks for is the names of the outputs, as a JSON list; what `whole_rows.py` says, where it gives its rows as
they are; or, of a function for `predict_batch_udf`, one of:

parameters  how many parameters the function has
arguments   what it returns for these arguments
"""

from __future__ import annotations

import json
import mmap
import pickle
from collections import deque
from collections.abc import Callable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from . import whole_rows
from .arrow_outputs import WrongOutput
from .batch_memory import NewColumn, mapped, read, read_rows, write
from .parts import ModelFailed
from .tensors import SINGLE
from .trouble import Trouble

if TYPE_CHECKING:
    from .. import _native
    from .device import Device


_T = TypeVar("_T")

PARAMETERS = "parameters"
ARGUMENTS = "arguments"


class Serving:
    """A model, and the memory of the tasks that use it."""

    def __init__(self, server: _native.ModelServer, model: Callable[[Any], Any], device: Device) -> None:
        self._server, self._model, self._device = server, model, device
        self._inputs: dict[tuple[int, int], mmap.mmap] = {}
        self._results: dict[tuple[int, int], mmap.mmap] = {}

    def serve(self) -> None:
        """Until the process is to end."""
        begun: deque[tuple[_native.ModelWork, Callable[[], list[NewColumn]]]] = deque()
        while self._server.wait():
            self._forget_tasks()
            work = self._server.next()
            if work is not None:
                begun.append((work, self._begun(work)))
            if begun and (work is None or len(begun) > self._device.ahead):
                self._answer(*begun.popleft())

    def _begun(self, work: _native.ModelWork) -> Callable[[], list[NewColumn]]:
        place = work.task, work.slot
        if work.memory is not None:
            self._inputs[place] = mapped(work.memory, writable=False)
        return deferred(lambda: self._computed(work, self._inputs[place]))

    def _answer(self, work: _native.ModelWork, outputs: Callable[[], list[NewColumn]]) -> None:
        try:
            columns = outputs()
            told, values = zip(*(column.written() for column in columns), strict=True)
            laid_out = self._server.lay_out(work.task, work.slot, work.rows, told)
        except Exception as problem:
            is_whole = isinstance(problem, (ModelFailed, WrongOutput, whole_rows.RowsRefused))
            trouble = Trouble(str(problem), "") if is_whole else Trouble.of(problem)
            self._server.refused(work.task, work.slot, *trouble)
            return
        if laid_out is not None:
            memory, at = laid_out
            place = work.task, work.slot
            if memory is not None:
                self._results[place] = mapped(memory, writable=True)
            write(self._results[place], at, values)
        self._server.done(work.task, work.slot)

    def _forget_tasks(self) -> None:
        for known in (self._inputs, self._results):
            for place in [place for place in known if not self._server.has(place[0])]:
                del known[place]

    def _computed(self, work: _native.ModelWork, memory: mmap.mmap) -> Callable[[], list[NewColumn]]:
        if work.asked in (PARAMETERS, ARGUMENTS):
            arguments = read(memory, work.columns[0])
            is_count = work.asked == PARAMETERS
            result = len(signature(self._model).parameters) if is_count else self._model(*arguments)
            return lambda: [NewColumn(work.asked, pickle.dumps(result, pickle.HIGHEST_PROTOCOL))]
        if whole_rows.is_of_rows(work.asked):
            rows = read_rows(memory, work.columns[0])
            made = whole_rows.scored(work.asked, rows, self._called_in_words, self._device.ahead)
            return lambda: [NewColumn(whole_rows.ROWS, made())]
        names = json.loads(work.asked)
        given = [NewColumn(column[0], read(memory, column)) for column in work.columns]
        outputs = self._called(given, work.rows, names)
        return lambda: [NewColumn(*column) for column in zip(names, outputs(), strict=True)]

    def _called(self, given: list[NewColumn], rows: int, names: list[str]) -> Callable[[], list[Any]]:
        """Has the model compute the outputs of these names of columns, and returns a wait for them."""
        values = {column.name: column.listed().values for column in given}

        def called(first: int, last: int) -> list[Any]:
            tensors = {name: self._tensor(whole[first:last]) for name, whole in values.items()}
            batch = tensors[SINGLE] if list(tensors) == [SINGLE] else tensors
            with self._device.computing():
                returned = self._model(batch)
            named = _named(returned, names)
            return [self._device.taken(named[name]) for name in names]

        parts = self._device.by_halves(rows, called)
        wait = self._device.begun()

        def outputs() -> list[Any]:
            wait()
            made = [
                [_rows(name, value, count) for name, value in zip(names, part, strict=True)]
                for count, part in parts
            ]
            return [_together(column) for column in zip(*made, strict=True)]

        return outputs

    def _tensor(self, values: Any) -> Any:
        return self._device.given(values) if isinstance(values, np.ndarray) else values

    def _called_in_words(
        self, given: list[NewColumn], rows: int, names: list[str]
    ) -> Callable[[], list[Any]]:
        """The same; for whatever goes wrong the wait raises `ModelFailed`, with the traceback, or `WrongOutput`."""
        wait = deferred(lambda: self._called(given, rows, names))

        def outputs() -> list[Any]:
            try:
                return wait()
            except WrongOutput:
                raise
            except Exception as problem:
                raise ModelFailed("the model failed: {}\n\n{}".format(*Trouble.of(problem))) from None

        return outputs


def deferred(begin: Callable[[], Callable[[], _T]]) -> Callable[[], _T]:
    """Begins something that is waited for later, and has the wait raise what the beginning does."""
    try:
        return begin()
    except Exception as problem:
        raised = problem

    def wait() -> _T:
        raise raised

    return wait


def _named(returned: Any, names: list[str]) -> dict[str, Any]:
    """What a model returned, by the names of the outputs. Raises `WrongOutput` where it returned others."""
    if _is_of_dictionaries(returned) and (len(names) > 1 or names[0] in returned[0]):
        keys = dict.fromkeys(key for row in returned for key in row)
        returned = {key: [row.get(key) for row in returned] for key in keys}
    if isinstance(returned, Mapping) or (hasattr(returned, "columns") and hasattr(returned, "iloc")):
        has = list(returned)
        if len(names) == len(has) and not set(names) & set(has) and not isinstance(returned, Mapping):
            return {name: returned[key] for name, key in zip(names, has, strict=True)}
        missing = [name for name in names if name not in has]
        if missing:
            raise WrongOutput(
                f"the model returned {', '.join(map(str, has))}, and outputs= asks for {', '.join(missing)}"
            )
        return {name: returned[name] for name in names}
    if isinstance(returned, tuple) or (isinstance(returned, list) and len(names) > 1):
        if len(returned) != len(names):
            raise WrongOutput(f"the model returned {len(returned)} outputs, and outputs= names {len(names)}")
        return dict(zip(names, returned, strict=True))
    if len(names) > 1:
        raise WrongOutput(
            f"the model returned one {type(returned).__name__}, and outputs= names {len(names)}"
        )
    return {names[0]: returned}


def _is_of_dictionaries(returned: Any) -> bool:
    """Whether each row is a dictionary, as pipelines of transformers return them."""
    return (
        isinstance(returned, list) and len(returned) > 0 and all(isinstance(row, Mapping) for row in returned)
    )


def _listed_array(values: Any) -> Any:
    """A list of texts, numbers, or lists and arrays of these, as an array of Arrow's."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except pa.ArrowException:  # it knows no tensors within lists
        return pa.array([item.tolist() if hasattr(item, "tolist") else item for item in values])


def _of_pandas(value: Any) -> Any:
    """A Series; its missing values are nulls, but for numbers of numpy's."""
    import pyarrow as pa

    if not hasattr(value, "dtype") or (isinstance(value.dtype, np.dtype) and value.dtype.kind != "O"):
        return value.to_numpy()
    try:
        return pa.Array.from_pandas(value)
    except pa.ArrowException:
        return value.tolist()


# The units of times that Arrow has.
_UNITS = ("D", "s", "ms", "us", "ns")


def _times(values: Any) -> Any:
    """Dates and times of numpy's as Arrow has them, or, in arrays, as Python has them."""
    import pyarrow as pa

    unit = np.datetime_data(values.dtype)[0]
    if values.ndim == 1 and unit in (_UNITS if values.dtype.kind == "M" else _UNITS[1:]):
        return pa.array(values)
    of_days = values.dtype.kind == "M" and unit in ("D", "Y", "M", "W")
    plain = values.astype(f"{values.dtype.kind}8[{'D' if of_days else 'us'}]")
    return pa.array(plain) if values.ndim == 1 else plain.tolist()


def _rows(name: str, value: Any, rows: int) -> Any:
    """An output as numbers of numpy's, or as an array of Arrow's; a row for each of the batch.

    Raises `WrongOutput` for anything else.
    """
    import pyarrow as pa
    import torch

    if isinstance(value, torch.Tensor):
        if value.dtype == torch.bfloat16:
            value = value.float()
        value = value.numpy()
    elif hasattr(value, "to_numpy") and not isinstance(value, (pa.Array, pa.ChunkedArray)):
        value = _of_pandas(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "mM":
        value = _times(value)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        value = _listed_array(value)
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if not isinstance(value, (np.ndarray, pa.Array)):
        raise WrongOutput(f"the model's output {name!r} is {type(value).__name__}, and no tensor or list")
    shape = value.shape if isinstance(value, np.ndarray) else (len(value),)
    if not shape or shape[0] != rows:
        raise WrongOutput(f"the model's output {name!r} has shape {tuple(shape)} for a batch of {rows} rows")
    return value


def _together(parts: tuple[Any, ...]) -> Any:
    """The parts of an output, one after another."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    import pyarrow as pa

    return pa.concat_arrays([pa.array(part) if isinstance(part, np.ndarray) else part for part in parts])
