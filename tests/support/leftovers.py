"""What no test may leave behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """For the conftest.py of a folder: fails a test that leaves a thread which would keep its process from ending."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for thread in left:
        thread.join(5)
    assert not [thread for thread in left if thread.is_alive()], "the test left threads behind"
