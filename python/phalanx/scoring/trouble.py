"""What a task is told where a model's process fails. It imports nothing that an executor's Python may lack."""

from __future__ import annotations

import traceback
from typing import NamedTuple

from ..rank.error_record import formatted


class Trouble(NamedTuple):
    """What a task is told of an exception."""

    error: str
    traceback: str

    @staticmethod
    def of(problem: BaseException) -> Trouble:
        """Without the frames of this package."""
        line = traceback.format_exception_only(problem)[-1].strip()
        return Trouble(line, formatted(problem))
