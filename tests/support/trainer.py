"""A driver program that trains when it is told to, so that several tests can break the trainings of one driver."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from support.programs import Program, gone


class Trainer(Program):
    """Runs a command with a folder and a face, of an app that trains as tests/apps/session.py says.

    Each rank leaves process ids in a file of the training's folder; the app prints a line that begins with RETURNED
    or FAILED when a training is over.
    """

    PIDS_OF_A_RANK = 1

    def __init__(
        self,
        app: Path,
        folder: Path,
        face: str,
        *,
        env: Mapping[str, str],
        command: Sequence[str] = (sys.executable,),
    ) -> None:
        self.trainings = folder / "trainings"
        self.trainings.mkdir()
        self.folder = self.trainings
        """That of the newest training."""
        self.number = -1
        super().__init__([*command, app, self.trainings, face], folder / "out", env=env)

    @property
    def ranks(self) -> list[int]:
        """The processes of the newest training's ranks."""
        return [int(pid) for path in sorted(self.folder.glob("[01]")) for pid in path.read_text().split()]

    @property
    def told(self) -> list[str]:
        """How the trainings ended that are over."""
        return [line for line in self.text.splitlines() if line.startswith(("RETURNED ", "FAILED "))]

    @property
    def can_train_again(self) -> bool:
        return self.process.poll() is None and len(self.told) == self.number + 1 and gone(self.ranks)

    def _next(self, face: str) -> None:
        self.number += 1
        self.folder = self.trainings / f"{self.number}-{face}"
        self.folder.mkdir()

    def trains(self, face: str) -> None:
        """Has it train over a stage, and waits until both ranks run."""
        self._next(face)
        self.waits_for("two ranks", 120, lambda: len(self.ranks) == 2 * self.PIDS_OF_A_RANK)

    def is_over(self, within: float) -> str:
        """Waits until the newest training is over; how it ended."""
        self.waits_for("the training is over", within, lambda: len(self.told) == self.number + 1)
        return self.told[-1]

    def stops(self) -> None:
        """Has it stop its session, and waits until it ends well."""
        self._next("stop")
        assert self.ends(60) == 0, self.text


def take(driver: Trainer, mebibytes: int) -> None:
    """Has rank 1 of a driver of `greedy.py` take so much memory."""
    (driver.folder / "mebibytes").write_text(str(mebibytes))
    (driver.folder / "mebibytes").rename(driver.folder / "greed")


Made = TypeVar("Made", bound=Trainer)


class Drivers(Generic[Made]):
    """The drivers of a module's tests: one whose training is over, and that lives, serves the next test, too."""

    def __init__(self) -> None:
        self._idle: dict[str, Made] = {}

    @contextmanager
    def training(self, name: str, face: str, make: Callable[[], Made]) -> Iterator[Made]:
        """A driver of this name whose ranks run over a stage."""
        driver = self._idle.pop(name, None) or make()
        try:
            driver.trains(face)
            yield driver
        finally:
            if driver.can_train_again:
                self._idle[name] = driver
            else:
                driver.end()

    def stop(self) -> None:
        """All of them end well."""
        try:
            for driver in self._idle.values():
                driver.stops()
        finally:
            for driver in self._idle.values():
                driver.end()
