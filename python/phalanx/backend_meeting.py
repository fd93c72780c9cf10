"""The monitored barrier: ranks meet at the group's store, and hear who didn't come. The group stays usable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any


class Meetings:
    """One rank's meetings with the others of its group. `ranks` are their numbers in the job."""

    def __init__(self, store: Any, rank: int, ranks: Sequence[int]) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._count = 0

    def meet(self, seconds: float, wait_all_ranks: bool) -> None:
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
        # Rank 0 may come later than this rank, and wait its time for the last.
        if not self._came(f"{key}/over", deadline + seconds):
            return f"rank {self._ranks[0]} failed to pass monitored_barrier in {seconds:g} s"
        return bytes(self._store.get(f"{key}/over")).decode()

    def _gather(self, key: str, seconds: float, deadline: float, wait_all_ranks: bool) -> str:
        missing: list[str] = []
        for place, rank in list(enumerate(self._ranks))[1:]:
            if not self._came(f"{key}/{place}", deadline):
                missing.append(str(rank))
                if not wait_all_ranks:
                    break
        problem = ""
        if missing:
            ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(missing)}"
            problem = f"{ranks} failed to pass monitored_barrier in {seconds:g} s"
        self._store.set(f"{key}/over", problem.encode())
        return problem

    def _came(self, key: str, deadline: float) -> bool:
        try:
            self._store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
        except RuntimeError:
            return False
        return True
