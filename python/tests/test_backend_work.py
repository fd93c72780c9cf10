"""Works by themselves, over a ticket that the test plays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(60)


class Done:
    """A ticket that is done; its callback runs on a thread of its own, as the native module's."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def wait(self, timeout: float | None) -> None: ...

    def is_done(self) -> bool:
        return True

    def failed(self) -> bool:
        return False

    def on_done(self, callback: Callable[[], object]) -> None:
        self.threads.append(threading.Thread(target=callback))
        self.threads[-1].start()


def test_a_wait_returns_when_the_results_are_in_place_even_if_another_thread_brings_them() -> None:
    # WRK-3: it returned while the callbacks' thread was still copying, and DDP read numbers that weren't there yet
    from phalanx.backend_work import CollectiveWork

    began, may_end, copied = threading.Event(), threading.Event(), []

    def copy() -> None:
        began.set()
        may_end.wait(20)
        copied.append(True)

    ticket: Any = Done()
    work = CollectiveWork(ticket, [], copy)
    assert began.wait(20)
    assert not work.is_completed()
    threading.Timer(0.3, may_end.set).start()
    assert work.wait()
    assert copied == [True]
    assert work.is_completed()
    for thread in ticket.threads:
        thread.join(20)
