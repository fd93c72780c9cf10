"""Carriers: Spark tasks without ranks, which serve the blocks of hosts where a run has no node, to its ranks.

Spark puts the tasks of a job where slots are free. So a round of carriers has as many tasks as the session has slots,
and each finds out by itself whether its host wants it (`rust/job/src/carrier.rs`).

FEED-7 (only-where-needed): where each host with blocks has a node there is no round, nor once each has a carrier.
FEED-8 (again): while a host has none there is another round, less and less often: its slots may have been taken.
FEED-9 (one-owner): the jobs of all rounds have ended, or were cancelled, when `close` returns.
FEED-10 (no-twins): a carrier lasts longer than the tasks that nobody wants. Where `spark.speculation` is on Spark would
start it a second time, elsewhere, and kill it once that copy has ended. So each task is a job of its own there: Spark
doesn't compare a task with others then (`TaskSetManager.checkSpeculatableTasks`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .jobs import BlockJobs

logger = logging.getLogger("phalanx")

# How long after a round the next one begins, and how much longer it is each time, up to a most.
FIRST_WAIT_S = 2.0
MOST_WAIT_S = 30.0
# When a host without a carrier is told of.
_TELL_AFTER_S = 20.0
# How many jobs a round has, at most, where each task is a job.
JOBS_AT_ONCE = 64
# How long the jobs may take to end by themselves, and when they are cancelled.
_END_S = 3.0


class Carriers:
    """The carriers of a run.

    `inherit` gives a function, for another thread, the Spark properties of the run; `tasks` tells how many
    tasks a round has; `apart` tells whether each is to be a job of its own; `cancel` ends all jobs of the run.
    """

    def __init__(
        self,
        jobs: BlockJobs,
        inherit: Callable[[Callable[..., None]], Callable[..., None]],
        *,
        tasks: Callable[[], int],
        apart: Callable[[], bool],
        cancel: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        self._round = inherit(self._carry)
        self._tasks = tasks
        self._apart = apart
        self._cancel = cancel
        self._news = threading.Condition()
        self._attempt = -1
        self._wanted: set[str] = set()
        """The hosts that have no carrier yet in this attempt."""
        self._number = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    def placed(self, attempt: int, wanted: Iterable[str], spec: Callable[[], bytes]) -> None:
        """The ranks of an attempt have their places, and no node is on the hosts that are `wanted`. Returns at once."""
        with self._news:
            self._attempt, self._wanted = attempt, set(wanted)
            self._news.notify_all()
            if not self._wanted or self._closed:
                return
            hosts = sorted(self._wanted)
        logger.info("No rank is on %s; tasks beside the run serve the blocks there", ", ".join(hosts))
        self._start(self._seek, attempt, hosts, spec())

    def carried(self, attempt: int, host: str) -> None:
        """A host has its carrier."""
        with self._news:
            if attempt == self._attempt:
                self._wanted.discard(host)
                self._news.notify_all()

    def close(self) -> None:
        """Ends the carriers; the run is over."""
        with self._news:
            self._closed = True
            self._news.notify_all()
            threads = list(self._threads)
        late = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, late - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            self._cancel()
        late = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, late - time.monotonic()))

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="phalanx-carry", daemon=True)
        with self._news:
            if self._closed:
                return
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
            thread.start()

    def _seek(self, attempt: int, hosts: list[str], spec: bytes) -> None:
        """Has rounds until each host has a carrier, or the attempt is over."""
        began, told, wait = time.monotonic(), False, FIRST_WAIT_S
        while True:
            try:
                jobs, tasks = self._sizes()
            except Exception as problem:  # the session is gone, which the run's own stage tells
                self._log(problem)
                return
            with self._news:
                if self._is_settled(attempt):
                    return
                first, self._number = self._number, self._number + jobs * tasks
            for job in range(jobs):
                self._start(self._round, hosts, spec, first + job * tasks, tasks)
            with self._news:
                self._news.wait_for(lambda: self._is_settled(attempt), wait)
                left = [] if self._is_settled(attempt) else sorted(self._wanted)
            if left and not told and time.monotonic() > began + _TELL_AFTER_S:
                told = True
                logger.warning(
                    "Spark has started no task on %s to serve the blocks there: are all slots there taken?",
                    ", ".join(left),
                )
            wait = min(2 * wait, MOST_WAIT_S)

    def _sizes(self) -> tuple[int, int]:
        """How many jobs a round has, and how many tasks each of them."""
        if self._apart():  # FEED-10
            return min(self._tasks(), JOBS_AT_ONCE), 1
        return 1, self._tasks()

    def _is_settled(self, attempt: int) -> bool:
        return self._closed or attempt != self._attempt or not self._wanted

    def _carry(self, hosts: list[str], spec: bytes, first: int, tasks: int) -> None:
        try:
            self._jobs.carry(spec, first, hosts, tasks)
        except Exception as problem:
            # A carrier that is lost fails the attempt by itself; what else ends the job is over with it.
            self._log(problem)

    def _log(self, problem: Exception) -> None:
        level = logging.DEBUG if self._closed else logging.WARNING
        logger.log(level, "Tasks that serve blocks have ended: %s", problem)
