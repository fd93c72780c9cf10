"""A model's process on a device that computes beside it, as a GPU does: when batches are begun and answered."""

from __future__ import annotations

import datetime
import json
import os
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from phalanx.scoring.batch_memory import NewColumn, mapped, read, read_rows, write
from phalanx.scoring.device import Device
from phalanx.scoring.serving import Serving
from phalanx.scoring.tensors import SINGLE
from phalanx.scoring.whole_rows import ROWS, told_of_rows

TASK = 7
WHOLE = told_of_rows(
    schema=pa.schema([("y", pa.float64())]),
    inputs="x", keys=[], nulls="error", pad=None, on_error="null", batch_size=2,
)  # fmt: skip


class Later(Device):
    """What the model returns has its values once it is waited for."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self._asked: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def ahead(self) -> int:
        return 1

    def taken(self, value: Any) -> Any:
        self._asked.append((torch.full_like(value, float("nan")), value))
        return self._asked[-1][0]

    def begun(self) -> Callable[[], None]:
        asked, self._asked = self._asked, []

        def wait() -> None:
            for there, value in asked:
                there.copy_(value)

        return wait


class Work(NamedTuple):
    task: int
    slot: int
    rows: int
    columns: list[Any]
    asked: str
    memory: tuple[int, int] | None


def memory_of(column: NewColumn) -> tuple[tuple[int, int], list[Any]]:
    """Memory with a column, to be mapped, and what is told of it."""
    (name, element, shape, size), values = column.written()
    room = max(size, 1)
    file = os.memfd_create("test")
    os.truncate(file, room)
    write(mapped((os.dup(file), room), writable=True), [0], [values])
    return (file, room), [(name, element, list(shape), 0, size)]


def work(number: int, values: list[float], *, whole: bool = False) -> Work:
    rows = pa.record_batch([pa.array(values)], ["x"])
    column = NewColumn(ROWS, rows) if whole else NewColumn(SINGLE, np.array(values))
    memory, columns = memory_of(column)
    return Work(TASK, number, len(values), columns, f"0 {WHOLE}" if whole else json.dumps(["y"]), memory)


class Served:
    """The end of a process whose task gives these batches, which is gone before it has `stays` answers."""

    def __init__(self, works: list[Work], stays: int = 99) -> None:
        self._works, self._stays = deque(works), stays
        self._open = 0
        self.log: list[str] = []
        self._results: dict[int, Any] = {}

    def wait(self) -> bool:
        return bool(self._works) or self._open > 0

    def next(self) -> Work | None:
        if not self._works:
            return None
        self._open += 1
        return self._works.popleft()

    def has(self, task: int) -> bool:
        return self._stays > 0

    def lay_out(self, task: int, slot: int, rows: int, columns: Any) -> Any:
        if not self.has(task):
            return None
        [(name, element, shape, size)] = columns
        file = os.memfd_create("test")
        os.truncate(file, max(size, 1))
        self._results[slot] = (
            mapped((os.dup(file), max(size, 1)), writable=False),
            name,
            element,
            shape,
            size,
        )
        return (file, max(size, 1)), [0]

    def done(self, task: int, slot: int) -> None:
        self._open -= 1
        if not self.has(task):
            self.log.append(f"{slot} is nobody's")
            return
        self._stays -= 1
        memory, name, element, shape, size = self._results[slot]
        column = (name, element, list(shape), 0, size)
        values = (
            read_rows(memory, column).column(0).to_pylist() if name == ROWS else read(memory, column).tolist()
        )
        self.log.append(f"{slot} is {values}")

    def refused(self, task: int, slot: int, error: str, traceback: str) -> None:
        self._open -= 1
        self.log.append(f"{slot} failed: {error}")


def log_of(device: Device, works: list[Work], stays: int = 99) -> list[str]:
    """What happened, in its order, with a model that doubles; it fails with what is negative."""
    served = Served(works, stays)

    def model(batch: torch.Tensor) -> torch.Tensor:
        served.log.append(f"given {batch.tolist()}")
        if (batch < 0).any():
            raise ValueError("below zero")
        if len(batch) > 4:
            raise torch.OutOfMemoryError
        return batch * 2

    server: Any = served
    Serving(server, model, device).serve()
    return served.log


def test_the_next_batch_is_begun_before_one_is_waited_for() -> None:
    works = [work(number, [float(number)]) for number in range(3)]
    assert log_of(Later(), works) == [
        "given [0.0]", "given [1.0]", "0 is [0.0]", "given [2.0]", "1 is [2.0]", "2 is [4.0]",
    ], "SCORE-26"  # fmt: skip


def test_on_processors_each_batch_is_answered_before_the_next_is_begun() -> None:
    works = [work(number, [float(number)]) for number in range(2)]
    assert log_of(Device(None, None), works) == ["given [0.0]", "0 is [0.0]", "given [1.0]", "1 is [2.0]"]


def test_a_batch_that_fails_is_refused_in_its_turn_and_the_others_have_their_outputs() -> None:
    works = [work(0, [1.0]), work(1, [-1.0]), work(2, [3.0])]
    assert log_of(Later(), works) == [
        "given [1.0]", "given [-1.0]", "0 is [2.0]", "given [3.0]", "1 failed: ValueError: below zero", "2 is [6.0]",
    ]  # fmt: skip


def test_a_batch_whose_task_has_gone_ends_all_the_same() -> None:
    works = [work(0, [1.0]), work(1, [2.0])]
    assert log_of(Later(), works, stays=1) == ["given [1.0]", "given [2.0]", "0 is [2.0]", "1 is nobody's"]


@pytest.mark.parametrize("device", [Later, lambda: Device(None, None)])
def test_parts_of_a_batch_that_takes_too_much_are_joined(device: Callable[[], Device]) -> None:
    values = [float(at) for at in range(7)]
    assert log_of(device(), [work(0, values)])[-1] == f"0 is {[2 * value for value in values]}", "SCORE-22"


def test_several_batches_of_rows_and_nulls_for_those_that_fail_come_as_on_processors() -> None:
    works = [work(0, [1.0, 2.0, 3.0, -4.0, 5.0], whole=True), work(1, [6.0], whole=True)]
    assert [line for line in log_of(Later(), works) if " is " in line] == [
        "0 is [2.0, 4.0, 6.0, None, 10.0]",
        "1 is [12.0]",
    ], "SCORE-15"


def answer(value: Any, kind: Any, rows: int = 2) -> Any:
    """What a task has of what a model returned, or what it is told."""
    told = told_of_rows(
        schema=pa.schema([("y", kind)]),
        inputs="x", keys=[], nulls="error", pad=None, on_error="raise", batch_size=9,
    )  # fmt: skip
    given = work(0, [float(at) for at in range(rows)], whole=True)._replace(asked=f"0 {told}")
    served: Any = Served([given])
    Serving(served, lambda batch: value, Device(None, None)).serve()
    [line] = served.log
    return line.removeprefix("0 is ")


DAY = datetime.date(2026, 1, 2)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (pd.Series(["a", None], dtype="string"), pa.string(), ["a", None]),
        (pd.Series(["a", float("nan")]), pa.string(), ["a", None]),
        (pd.Series(["a", None], dtype="category"), pa.string(), ["a", None]),
        (pd.Series([True, None], dtype="boolean"), pa.bool_(), [True, None]),
        (pd.Series([1, None], dtype="Int64"), pa.int32(), [1, None]),
        (pd.Series([1.5, None], dtype="Float64"), pa.float64(), [1.5, None]),
        (pd.Series([np.ones(2), np.zeros(2)]), pa.list_(pa.float64()), [[1.0, 1.0], [0.0, 0.0]]),
        (pd.DataFrame({"y": [1.5, 2.5]}), pa.float64(), [1.5, 2.5]),
        (pa.array(["a", None]), pa.string(), ["a", None]),
        (pa.chunked_array([["a"], ["b"]]), pa.string(), ["a", "b"]),
        (np.array(["a", "b"]), pa.string(), ["a", "b"]),
        (np.array([DAY] * 2, "M8[D]"), pa.date32(), [DAY] * 2),
        (np.array([[DAY]] * 2, "M8[D]"), pa.list_(pa.date32()), [[DAY]] * 2),
        (np.array([DAY] * 2, "M8[M]"), pa.date32(), [DAY.replace(day=1)] * 2),
        (np.array([1, 2], "m8[D]"), pa.duration("us"), [datetime.timedelta(days=n) for n in (1, 2)]),
        (np.array([DAY] * 2, "M8[h]"), pa.timestamp("us"), [datetime.datetime(2026, 1, 2)] * 2),
        (np.array([DAY] * 2, "M8[ns]"), pa.timestamp("us"), [datetime.datetime(2026, 1, 2)] * 2),
        (torch.tensor([1.5, 2.5], dtype=torch.bfloat16), pa.float32(), [1.5, 2.5]),
        ([np.float32(1.5), None], pa.float32(), [1.5, None]),
        ([torch.ones(1), torch.zeros(1)], pa.list_(pa.float32()), [[1.0], [0.0]]),
    ],
)
def test_what_other_libraries_return_is_a_column(value: Any, kind: Any, expected: list[Any]) -> None:
    assert answer(value, kind) == str(expected), "SCORE-16"


def test_what_is_no_column_is_refused_in_a_sentence() -> None:
    said = {
        "is object, and no tensor or list": object(),
        "has shape (3,) for a batch of 2 rows": [1, 2, 3],
        "the model returned z, and outputs= asks for y": {"z": 1},
    }
    for sentence, value in said.items():
        assert sentence in answer(value, pa.float64()), "SCORE-16"
