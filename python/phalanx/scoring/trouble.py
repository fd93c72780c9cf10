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
        told = traceback.TracebackException.from_exception(problem)
        vars(told)["__notes__"] = None  # they would be the last lines; the traceback has them
        return Trouble(list(told.format_exception_only())[-1].strip(), formatted(problem))
