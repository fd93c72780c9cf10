"""The part of `_native` that is about models that score rows; there is no such module by itself."""

from collections.abc import Callable, Sequence
from typing import final

from .stages.here import Home

# A batch's column that is to be written: its name, element (rust/scoring/src/batch.rs), shape, bytes.
_NewColumn = tuple[str, str, Sequence[int], int]
# One that is in memory: its name, element, shape, where it begins there, its bytes.
_Column = tuple[str, str, list[int], int, int]
# Memory to be mapped: a descriptor, which is the caller's to close, and its bytes.
_File = tuple[int, int]

@final
class ModelAnswer:
    """What became of a batch: `columns` of the results, or `trouble` (the exception in a line, its traceback)."""

    columns: list[_Column]
    memory: _File | None
    """Where they are, if that is other memory than in the last answer of this slot."""
    trouble: tuple[str, str] | None
    has_model: bool
    """Whether the model is there, and only failed with this batch."""

@final
class ModelConnection:
    """A task's end of the process that has a model, which is met by `name` or started.

    `told` is what the process is told (`scoring/model_process.py`), `env` variables of its own; `model` returns a
    descriptor of the model's file. For one thread at a time."""

    def __new__(
        cls, name: str, told: str, env: Sequence[tuple[str, str]], home: Home, model: Callable[[], int]
    ) -> ModelConnection: ...
    def rows_at_once(self, batch_size: int) -> int:
        """How many rows to give next: those of one batch of so many for the model, or of several."""

    def lay_out(
        self, slot: int, rows: int, columns: Sequence[_NewColumn], asked: str
    ) -> tuple[_File | None, list[int]]:
        """Where a batch is to be written: the memory, if it is other than before in this slot, and where each column
        begins. `asked` is a text for the process."""

    def give(self, slot: int) -> tuple[str, str] | None:
        """Gives the model what was written into a slot. Where there is no model, why not."""

    def take(self) -> ModelAnswer:
        """Waits for what becomes of the oldest batch that was given. Raises `NativeError` (closed) where the process
        has ended twice in the midst of batches."""

    def close(self) -> None:
        """Lets go of the process, and of the memory of what was given."""

@final
class ModelWork:
    """A batch to compute."""

    task: int
    slot: int
    rows: int
    columns: list[_Column]
    asked: str
    memory: _File | None
    """Its memory, if that is other than before in this slot of the task's."""

@final
class ModelServer:
    """The end of a model's process, which has the socket at which it is met as descriptor 3."""

    def __new__(cls, idle_seconds: float) -> ModelServer: ...
    def model(self) -> int | None:
        """Waits for the model: a descriptor, which is the caller's to close. None where the process is to end."""

    def ready(self) -> None:
        """Tells the tasks that they can give batches."""

    def failed(self, error: str, traceback: str) -> None:
        """Tells them that there is no model."""

    def wait(self) -> bool:
        """Waits until there is a batch, or a task has gone. False where the process is to end."""

    def next(self) -> ModelWork | None:
        """The next batch, if there is one."""

    def has(self, task: int) -> bool:
        """Whether this task is still there."""

    def lay_out(
        self, task: int, slot: int, rows: int, columns: Sequence[_NewColumn]
    ) -> tuple[_File | None, list[int]] | None:
        """Where results are to be written, as `ModelConnection.lay_out`; None where the task has gone."""

    def done(self, task: int, slot: int) -> None:
        """Tells a task that its results are written."""

    def refused(self, task: int, slot: int, error: str, traceback: str) -> None:
        """Tells a task that the model failed with its batch."""
