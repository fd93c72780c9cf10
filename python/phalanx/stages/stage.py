"""What every stage is: a thread that hosts or submits the nodes of a run.

STAGE-6 (told-once): a stage tells the hub when it is over, once for each time that it was started.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from .spark_errors import explain

if TYPE_CHECKING:
    from .. import _native
    from ..request.run_request import RunRequest

logger = logging.getLogger("phalanx")

# How long a stage may take to end before the next attempt's begins.
_STAGE_END_S = 30.0


class Stage:
    """A thread that hosts or submits the nodes of a run."""

    what = "the Spark stage"

    def __init__(self, request: RunRequest) -> None:
        self.error: BaseException | None = None
        """What ended the stage, where it did not end well."""
        self._request = request
        self._cancelled = False
        self._attempt = 0
        self._thread: threading.Thread | None = None
        # Made in the caller's thread, whose Spark properties it is to have; the run may be driven by another.
        self._target = self._inheriting(self._main)

    def start(self, hub: _native.Hub, attempt: int = 0) -> None:
        """Begins; returns at once. A later attempt first ends what is left of the one before."""
        before, self._attempt = self._thread, attempt
        self._thread = threading.Thread(
            target=self._target, args=(hub, attempt, before), name="phalanx-stage", daemon=True
        )
        self._thread.start()

    def _inheriting(self, target: Callable[..., None]) -> Callable[..., None]:
        """`target`, with what a thread of the stage has from the caller's."""
        return target

    def _main(self, hub: _native.Hub, attempt: int, before: threading.Thread | None) -> None:
        problem: str | None = None
        cancelled = False
        try:
            if before is not None:
                self._make_room()
            with self._watched(hub, attempt):
                if before is not None:
                    self._after(before)
                if not self._cancelled:
                    self._run(hub, attempt)
        except BaseException as error:
            if not self._cancelled and attempt == self._attempt:
                self.error = error
                kind, said = explain(error)
                cancelled = kind == "cancelled"
                problem = said if cancelled else f"{self.what} failed: {said}"
        try:
            if problem is not None and cancelled:
                hub.stop(problem)
                problem = None
            hub.stage_ended(attempt, problem)
        except RuntimeError as error:  # the run is over and the hub closed
            logger.debug("%s", error)

    def _after(self, before: threading.Thread) -> None:
        """Waits for the end of the attempt before, and makes the payload of this one."""
        before.join(_STAGE_END_S)
        if before.is_alive():
            raise RuntimeError("the Spark stage of the previous attempt has not ended")
        if not self._cancelled:
            self._request.payload.renew()

    def _watched(self, hub: _native.Hub, attempt: int) -> contextlib.AbstractContextManager[object]:
        """Has the hub told, meanwhile, whether the attempt's tasks wait for slots."""
        return contextlib.nullcontext()

    def _run(self, hub: _native.Hub, attempt: int) -> None:
        """Runs all nodes to their end; they begin with `attempt`."""
        raise NotImplementedError

    def _make_room(self) -> None:
        """Before a later attempt: ends what is left of the one before, and waits until another can run."""

    def add_seat(self, attempt: int, partition: int) -> None:
        """Submits the seat of a partition once more, in the gang of tasks that began with this attempt."""

    def end_other_seats(self, attempt: int, partition: int, stage: int) -> None:
        """Ends the jobs of a partition's seat but for that of this Spark stage."""

    def carrier_spec(self, hub: _native.Hub, attempt: int) -> bytes:
        """What tasks are told that serve blocks to the ranks of an attempt."""
        return hub.node_spec(attempt, python=None, env={}, local_gpus=[])

    def forget(self) -> None:
        """Lets go of what a failure's traceback holds: the run is over, and somebody may keep it."""
        if self.error is not None:
            traceback.clear_frames(self.error.__traceback__)

    def close(self) -> None:
        """Ends what the stage has beside its thread; the run is over."""

    def cancel(self) -> None:
        """Ends the stage from outside, where that is possible; how it ends is then no news."""
        self._cancelled = True

    def join(self, timeout: float) -> bool:
        """Waits for the end; False if it has not come."""
        assert self._thread is not None
        self._thread.join(timeout)
        return not self._thread.is_alive()
