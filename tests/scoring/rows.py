"""Rows for tests of scoring."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.tiers import whole

IDLE_SECONDS = 2


def whole_case(*values: Any) -> Any:
    """A case that is left to the whole tier: it has another query, or other rows."""
    return pytest.param(*values, marks=whole("another case"))


def numbers(session: Any, rows: int = 100, partitions: int = 3) -> Any:
    """A DataFrame of an `id` and the same as `x`, a double."""
    return session.range(0, rows, 1, partitions).selectExpr("id", "cast(id as double) as x")


def error_of(query: Callable[[], Any]) -> str:
    """What a query fails with."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 (Spark's classes differ by line and by client)
        query()
    return str(raised.value)


class ToBeCancelled:
    """A query that runs in a thread until `cancel`."""

    def __init__(self, session: Any, frame: Any) -> None:
        self._session, self._frame = session, frame
        self._errors: list[str] = []
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        self._session.sparkContext.setJobGroup("scoring", "to be cancelled")
        self._errors.append(error_of(self._frame.collect))

    def cancel(self) -> str:
        """What it fails with."""
        self._session.sparkContext.cancelJobGroup("scoring")
        self._thread.join(60)
        assert not self._thread.is_alive(), "a query that was cancelled ends"
        return self._errors[0]
