"""Data that goes from running Spark tasks straight to the ranks, once."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Streamed(Generic[T]):
    """Stands for data of which the ranks take each row once, while Spark computes it; made by `streamed`."""

    def __init__(self, data: T) -> None:
        self.data = data


def streamed(data: T) -> Streamed[T]:
    """Data for one epoch, which goes from the running Spark tasks to their ranks, for
    `run(train, data={"train": phalanx.streamed(df)})`.

    Phalanx writes it to no disk, and Spark computes no faster than the ranks take batches. A run can have one such data
    set. Where the DataFrame doesn't have one partition for each task of the run, Spark first shuffles it to that many.
    """
    return Streamed(data)
