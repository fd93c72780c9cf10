"""Data of which every rank takes all rows."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Replicated(Generic[T]):
    """Stands for data of which every rank takes all rows; made by `replicated`."""

    def __init__(self, data: T) -> None:
        self.data = data


def replicated(data: T) -> Replicated[T]:
    """Small data that every rank takes whole, for `run(train, data={"eval": phalanx.replicated(df)})`."""
    return Replicated(data)
