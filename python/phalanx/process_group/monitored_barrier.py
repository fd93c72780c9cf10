"""The monitored barrier: ranks meet at the group's store, and learn who didn't come. The group stays usable.

Its errors begin with gloo's words, since programs look for them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any


class MonitoredBarrier:
    """One rank's end of a group's monitored barriers. `ranks` are the numbers of the group's ranks in the job."""

    def __init__(self, store: Any, rank: int, ranks: Sequence[int]) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._count = 0

    def pass_within(self, seconds: float, wait_all_ranks: bool) -> None:
        """Returns once all ranks have come. Rank 0 waits so many seconds for them, and tells them how it ended."""
        self._count += 1
        key = f"monitored_barrier/{self._count}"
        deadline = time.monotonic() + seconds
        problem = (
            self._report(key, seconds, deadline)
            if self._rank
            else self._gather(key, seconds, deadline, wait_all_ranks)
        )
        if problem:
            raise RuntimeError(f"rank {self._ranks[self._rank]}: {problem}")

    def _report(self, key: str, seconds: float, deadline: float) -> str:
        self._store.set(f"{key}/{self._rank}", b"1")
        first, mine = self._ranks[0], self._ranks[self._rank]
        # Rank 0 may come later than this rank, and wait its time for the last.
        if self._came(f"{key}/over", deadline + seconds):
            problem = bytes(self._store.get(f"{key}/over")).decode()
        else:
            problem = f"it did not come within {_milliseconds(2 * seconds)}"
        if not problem:
            return ""
        return (
            f"Rank {mine} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
            f"from rank {first}: {problem}"
        )

    def _gather(self, key: str, seconds: float, deadline: float, wait_all_ranks: bool) -> str:
        missing: list[str] = []
        for place, rank in list(enumerate(self._ranks))[1:]:
            if not self._came(f"{key}/{place}", deadline):
                missing.append(str(rank))
                if not wait_all_ranks:
                    break
        problem = ""
        if missing:
            ranks = f"Rank{'s' * (len(missing) > 1)} {', '.join(missing)}"
            problem = f"{ranks} failed to pass monitoredBarrier in {_milliseconds(seconds)}"
            if seconds <= 0:
                problem = f"Rank {self._ranks[0]} timed out in monitoredBarrier after 0 ms: {problem}"
        self._store.set(f"{key}/over", problem.encode())
        return problem

    def _came(self, key: str, deadline: float) -> bool:
        try:
            self._store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
        except RuntimeError:
            return False
        return True


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
