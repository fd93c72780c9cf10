"""A stage that is a Spark job.

STAGE-5 (caller-properties): the caller's Spark properties (job group, scheduler pool) hold for the stage. Nothing that
the stage sets is left behind in the caller's properties.

STAGE-12 (asked-again): before a later attempt of a gang of tasks, Spark is told to ask once more for its executors. A
standalone master replaces what it has decommissioned only when it is asked, and Spark doesn't ask where the new tasks
come at once.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..connect.client import is_remote
from ..connect.server import ConnectServer
from ..request.preflight import wait_for_slots
from ..spark.driver_jvm import own_runner
from ..spark.session import starts_executors
from ..spark.versions import inheriting
from .stage import Stage
from .stage_watch import (
    OVER_CONNECT,
    PACE,
    WITHOUT_JAR,
    StageLook,
    StageWatch,
    look_at_scheduler,
    look_through_server,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .. import _native
    from ..request.run_request import RunRequest

logger = logging.getLogger("phalanx")

# How long Spark may take to hear of a cancel.
_CANCEL_S = 3.0


class SparkStage(Stage):
    """A stage that is a Spark job, with the caller's Spark properties and a tag of its own to cancel it by."""

    def __init__(
        self,
        request: RunRequest,
        *,
        spark: SparkSession,
        local_gpus: list[str],
    ) -> None:
        """`local_gpus` are those of the driver for tasks on a local master."""
        self._spark = spark
        super().__init__(request)
        job = self._job = request.job
        self._local_gpus = local_gpus
        # How many tasks it takes, where they are a Spark job each; none in a barrier stage.
        self._seats = job.least_tasks if request.settings.gang == "tasks" else 0
        self._profile = request.profile
        # How many jobs the hub has wanted beside those of each seat.
        self._beside: collections.Counter[int] = collections.Counter()
        self._all_run = threading.Event()
        self._description = f"Phalanx: {job.name}, {job.ranks} ranks"
        self._tag = _new_tag()
        self._deaf = False

    def _inheriting(self, target: Callable[..., None]) -> Callable[..., None]:
        return inheriting(self._spark, target)

    @contextlib.contextmanager
    def _tagged(self) -> Iterator[str]:
        """Has the jobs of the calling thread carry the attempt's tag. The threads of all attempts have the same
        properties, so that a tag which stayed would also be on the jobs of the next."""
        tag, of = self._tag, self._spark if is_remote(self._spark) else self._spark.sparkContext
        add, remove = (of.addTag, of.removeTag) if is_remote(self._spark) else (of.addJobTag, of.removeJobTag)
        add(tag)
        try:
            yield tag
        finally:
            with contextlib.suppress(Exception):  # the session may be gone
                remove(tag)

    def _make_room(self) -> None:
        self._cancel_jobs(self._tag)
        self._tag = _new_tag()
        if self._seats:  # executors come for tasks that wait
            if not is_remote(self._spark) and starts_executors(self._spark):
                self._spark.sparkContext._jsc.sc().requestExecutors(0)
            return
        # Spark itself would look only every 15 s whether the lost executor has been replaced.
        within = self._request.settings.slots_timeout
        wait_for_slots(self._spark, self._job.tasks, within, lambda: self._cancelled, self._profile)

    @contextlib.contextmanager
    def _watched(self, hub: _native.Hub, attempt: int) -> Iterator[None]:
        all_run = self._all_run = threading.Event()
        self._beside.clear()
        tag = self._tag

        def jobs() -> int:
            return self._seats + self._beside.total() if self._seats else 0

        def tell(seen: StageLook) -> None:
            hub.stage_seen(attempt, seen.running, seen.slots, seen.free)
            if seen.leaving:
                hub.decommissioned(seen.leaving)
            if seen.running:
                all_run.set()

        with contextlib.ExitStack() as stack:
            if is_remote(self._spark):
                server = stack.enter_context(contextlib.closing(ConnectServer(self._spark)))
                ask = functools.partial(
                    look_through_server, self._spark, server, tag, self._seats, self._profile
                )
                stack.enter_context(StageWatch(ask, tell, pace=OVER_CONNECT))
            else:
                context, executors = self._spark.sparkContext, dict[int, str]()

                def look() -> StageLook:
                    return look_at_scheduler(context, tag, jobs(), self._profile, executors)

                pace = PACE if own_runner(context) is not None else WITHOUT_JAR
                stack.enter_context(StageWatch(look, tell, pace=pace))
            yield

    def add_seat(self, attempt: int, partition: int) -> None:
        if attempt == self._attempt and self._seats and not self._cancelled:
            self._beside[partition] += 1
            self._add_job(partition)

    def end_other_seats(self, attempt: int, partition: int, stage: int) -> None:
        if attempt == self._attempt and self._beside.pop(partition, 0):
            self._cancel_by(lambda: self._end_other_jobs(partition, stage))

    def _add_job(self, partition: int) -> None:
        raise NotImplementedError

    def _end_other_jobs(self, partition: int, stage: int) -> None:
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancels the stage's Spark job; safe when it is over. Blocks for `_CANCEL_S` at most."""
        super().cancel()
        self._cancel_jobs(self._tag)

    def _cancel_jobs(self, tag: str) -> None:
        if not is_remote(self._spark):
            self._cancel_by(lambda: self._cancel_here(tag))
        elif not self._deaf:
            # A client tries for ten minutes to reach a server that has gone.
            interrupt = functools.partial(self._cancel_by, lambda: self._spark.interruptTag(tag))
            telling = threading.Thread(target=interrupt, name="phalanx-cancel", daemon=True)
            telling.start()
            telling.join(_CANCEL_S)
            self._deaf = telling.is_alive()

    def _cancel_here(self, tag: str) -> None:
        context = self._spark.sparkContext
        runner = own_runner(context)
        if runner is None:
            context.cancelJobsWithTag(tag)
        else:  # a gang that waits for its turn has no jobs yet
            runner.cancel(context._jsc.sc(), tag)

    def _cancel_by(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # the session may be gone, and with it the job
            logger.debug("The Spark job can't be cancelled: %s", error)

    def join(self, timeout: float) -> bool:
        """As `Stage.join`; doesn't wait for a Spark that could not be told to cancel."""
        return super().join(0 if self._deaf else timeout)


def _new_tag() -> str:
    return f"phalanx-{os.urandom(8).hex()}"
