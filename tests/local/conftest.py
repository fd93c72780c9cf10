"""What the tests of local mode share: a session of one core, without executors and without the jar."""

from __future__ import annotations

from typing import Any

import pytest
from support import sessions
from support.leftovers import no_thread_is_left

__all__ = ["no_thread_is_left"]


@pytest.fixture(scope="module")
def spark() -> Any:
    return sessions.one_core({})
