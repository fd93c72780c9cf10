"""Ranks agree how many steps they all have, while none of them knows yet how many rows will come.

Steps come in windows. Each rank votes for a window when it has the rows of its steps, or has no more; all see the same
sum of votes when all have voted. A vote is an addition to a counter of the job's store, so a window costs each rank
three short requests whatever the number of ranks, and a loader makes them ahead of the steps.

FEED-43 (same-answer): every rank gets the same sum for a window, or an error.
FEED-44 (left-is-told): a rank that leaves votes so for its next window, and the others raise, with its name. Nobody
waits for a rank that has left.
FEED-45 (small): the store keeps the counters of two windows.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from ...rank import contract

_BITS = 15
MOST_RANKS = (1 << _BITS) - 1

# A rank that waits asks again after this share of the time that it has waited, within these bounds.
_SHARE = 0.125
_SOONEST_S = 0.0005
_LATEST_S = 0.1
# How long the store may take to let a rank in, and to answer.
_STORE_S = 60.0


class Votes(NamedTuple):
    """How many ranks said what of a window."""

    ended: int
    """That they don't have the rows of all its steps, and that no more come."""
    less: int
    """That the next window had better be smaller."""


class RankLeft(ConnectionError):
    """Another rank has left its loop. It counts as a lost peer, since that rank's own error is the cause, if any."""


class StepAgreement:
    """One rank's part in it. `vote` belongs to one thread; `leave` may be called by any."""

    def __init__(self, name: str, rank: int, world_size: int, store: Callable[[], Any] | None = None) -> None:
        if world_size > MOST_RANKS:
            raise ValueError(f"a streamed data set can have up to {MOST_RANKS} ranks, not {world_size}")
        self._name = name
        self._rank = rank
        self._world_size = world_size
        self._open = store or _jobs_store
        self._store: Any = None
        self._lock = threading.Lock()
        self._window = 0
        self._left = False

    def vote(self, *, ended: bool, less: bool) -> Votes | None:
        """Votes for the next window, and waits for the others; None where this rank has left meanwhile.

        Raises `RankLeft` where another one has.
        """
        if self._world_size == 1:
            return Votes(int(ended), int(less))
        with self._lock:
            if self._left:
                return None
            sum_of = self._add(1 | ended << _BITS | less << 2 * _BITS)
            window, self._window = self._window, self._window + 1
        if sum_of & MOST_RANKS == self._world_size:
            self._store.set(self._key(window, "sum"), str(sum_of))
            if window:  # who has voted for this one has read the one before
                self._store.delete_key(self._key(window - 1, "votes"))
                self._store.delete_key(self._key(window - 1, "sum"))
        else:
            if not self._is_there(self._key(window, "sum")):
                return None
            sum_of = int(self._store.get(self._key(window, "sum")))
        _, ended_by, less_by, left_by = (sum_of >> at * _BITS & MOST_RANKS for at in range(4))
        if left_by:
            raise RankLeft(self._store.get(self._key(None, "left")).decode())
        return Votes(ended_by, less_by)

    def leave(self, steps: int) -> None:
        """Tells the others that this rank takes no more than `steps`; again is harmless."""
        if self._world_size == 1:
            return
        with self._lock:
            if self._left:
                return
            self._left = True
            # Before the vote: who sees the vote reads it.
            self._the_store().set(
                self._key(None, "left"),
                f"rank {self._rank} has left its loop over the data set {self._name!r} after {steps} steps, so this "
                "rank can't go on: a streamed data set has equal steps on all ranks; leave the loop at the same step "
                "on all of them",
            )
            sum_of = self._add(1 | 1 << 3 * _BITS)
            if sum_of & MOST_RANKS == self._world_size:
                self._store.set(self._key(self._window, "sum"), str(sum_of))

    def _add(self, vote: int) -> int:
        return int(self._the_store().add(self._key(self._window, "votes"), vote))

    def _is_there(self, key: str) -> bool:
        """Waits until the store has `key`; False where this rank leaves meanwhile. Only the run's end, or that of the
        store, ends a wait for a rank that neither votes nor leaves: it is as in a collective operation."""
        began = time.monotonic()
        while not self._store.check([key]):
            if self._left:
                return False
            time.sleep(min(max((time.monotonic() - began) * _SHARE, _SOONEST_S), _LATEST_S))
        return True

    def _the_store(self) -> Any:
        if self._store is None:
            self._store = self._open()
        return self._store

    def _key(self, window: int | None, what: str) -> str:
        return f"phalanx-stream/{self._name}/{what}" + ("" if window is None else f"/{window}")


def _jobs_store() -> Any:
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(
        os.environ[contract.ENV_MASTER_ADDR],
        int(os.environ[contract.ENV_MASTER_PORT]),
        is_master=False,
        timeout=timedelta(seconds=_STORE_S),
        wait_for_workers=False,
    )
