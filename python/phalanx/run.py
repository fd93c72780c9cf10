"""`Run`: one run of a job, from the caller's thread to its result.

RUN-1: output, phases and the outcome are handled in one thread (the caller's for `TorchDistributor.run`), so that
a notebook shows output in the cell that asked for it. RUN-2: when `drive` returns or raises, the Spark job is over,
the hub closed, its thread gone. RUN-3: showing output never fails a run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from .errors import RankReport, TrainingError
from .jvm_stage import JvmStage, uses_jvm
from .results import UnavailableResult
from .seen import Stacks, report
from .stages import LocalStage, PythonStage, Stage, driver_dir, hub_endpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .settings import Settings

logger = logging.getLogger("phalanx")

# How long one wait for the hub is; events and Ctrl-C end it at once.
_PATIENCE_S = 3600.0
# How long the ranks' stacks may take: the hub waits 5 s for its nodes.
_STACKS_S = 10.0
# How long the Spark stage may take to end once all its ranks have.
_STAGE_END_S = 30.0


class Phase(NamedTuple):
    """A point in a run's life."""

    name: str
    rank: int | None
    """None for the job's own phases."""
    seconds: float
    """Since the run was asked for."""


class Run:
    """One training run; made by `TorchDistributor.run` and `.start`, not by hand.

    Example:
        run = TorchDistributor(num_processes=2).start(train, 1e-3)
        run.result()     # rank 0's value, or TrainingError
        run.results()    # what every rank returned
    """

    def __init__(
        self,
        *,
        spark: SparkSession,
        job: bytes,
        payload: bytes,
        name: str,
        local_mode: bool,
        num_tasks: int,
        use_gpu: bool,
        gpus: Sequence[str],
        settings: Settings,
        dataframe: DataFrame | None = None,
    ) -> None:
        in_jvm = not local_mode and uses_jvm(spark, settings.stage, dataframe=dataframe is not None)
        self.name = name
        self.phases: list[Phase] = []
        self.ranks: list[RankReport] = []
        """What became of each rank, once the run is over."""
        self.phase = "preparing"
        """Where the run is, in words: `waiting for 3 of 8 tasks`, `starting ranks`, `training, step 120`, `over`."""
        self.reports: dict[int, dict[str, Any]] = {}
        """The newest `phalanx.report` of each rank: its step, and what else it told."""
        self._job = job
        self._num_ranks: int = json.loads(job)["ranks"]
        self._began = time.monotonic()
        self._hub: _native.Hub | None = None
        self._hub_lock = threading.Lock()
        self._cancelled: str | None = None
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        # The results' files live as long as the run, and no longer than the application, however it ends.
        self._work_dir = driver_dir(spark)
        self._files = tempfile.TemporaryDirectory(
            prefix="phalanx-run-", dir=self._work_dir, ignore_cleanup_errors=True
        )
        self._endpoint = ("127.0.0.1", "127.0.0.1") if local_mode else hub_endpoint(spark)
        self._show = _Show()
        self._kept_logs: dict[int, str] = {}
        self._stage: Stage
        if local_mode:
            self._stage = LocalStage(spark=spark, job=job, payload=payload, gpus=list(gpus))
        else:
            in_python = functools.partial(PythonStage, use_gpu=use_gpu, dataframe=dataframe)
            stage: Callable[..., Stage] = JvmStage if in_jvm else in_python
            self._stage = stage(
                spark=spark,
                job=job,
                payload=payload,
                name=name,
                num_tasks=num_tasks,
                num_ranks=self._num_ranks,
                slots_timeout=settings.slots_timeout,
                local_gpus=list(gpus),
            )

    @property
    def done(self) -> bool:
        """Whether the run is over, well or not."""
        return self._over.is_set()

    def start(self) -> Run:
        """Drives the run in a thread of its own; returns at once."""
        self._thread = threading.Thread(target=self._drive_quietly, name="phalanx-run", daemon=True)
        self._thread.start()
        return self

    def _drive_quietly(self) -> None:
        with contextlib.suppress(BaseException):  # kept for result()
            self.drive()

    def drive(self) -> Any:
        """Runs the job to its end in this thread, showing output as it comes; returns rank 0's value.

        Raises:
            TrainingError: a rank failed, or the job could not be started.
            KeyboardInterrupt: after every rank has been ended.
        """
        try:
            bind, advertise = self._endpoint
            hub = _native.Hub(self._job, bind=bind, advertise=advertise, work_dir=self._work_dir)
            try:
                self._drive(hub)
            finally:
                with self._hub_lock:
                    # A hub that broke is told by other means.
                    with contextlib.suppress(_native.NativeError):
                        self._kept_logs = {rank: hub.logs(rank) for rank in range(self._num_ranks)}
                    self._hub = None
                hub.close()
            self._phase("returned", None, self._elapsed())
            return self._load(0)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self.phase = "over"
            self._over.set()

    def _drive(self, hub: _native.Hub) -> None:
        opened = self._elapsed()
        self._phase("hub open", None, opened)
        with self._hub_lock:
            self._hub = hub
            if self._cancelled is not None:
                hub.stop(self._cancelled)
        self._stage.start(hub)
        interrupt: KeyboardInterrupt | None = None
        failure: str | None = None
        try:
            while True:
                try:
                    event = hub.next(_PATIENCE_S)
                except KeyboardInterrupt as pressed:
                    if interrupt is not None:
                        raise
                    interrupt = pressed
                    hub.stop("interrupted (Ctrl-C)")
                    continue
                if event is None:
                    continue
                kind, value = event
                if kind == "output":
                    self._show(value)
                elif kind == "status":
                    self.phase = value
                elif kind == "report":
                    rank, step, values = value
                    self.reports[rank] = report(step, values)
                elif kind == "phase":
                    name, rank, seconds = value
                    self._phase(name, None if rank < 0 else rank, opened + seconds)
                elif kind == "resubmit":
                    self._stage.start(hub, value)
                else:
                    told = json.loads(value)
                    self.ranks = [
                        RankReport(**report) for report in (told if kind == "finished" else told["ranks"])
                    ]
                    failure = value if kind == "failed" else None
                    break
        except BaseException:
            self._stage.cancel()
            raise
        self._keep_results(hub)
        if failure is not None or interrupt is not None:
            self._stage.cancel()
        if not self._stage.join(_STAGE_END_S):
            logger.warning("The Spark stage of %s has not ended; cancelling it.", self.name)
            self._stage.cancel()
        if interrupt is not None:
            raise interrupt
        if failure is not None:
            error = TrainingError.from_json(failure, _native.render_failure(failure))
            if error.__cause__ is None:
                error.__cause__ = self._stage.error
            error.results = [self._load_if_any(rank) for rank in range(self._num_ranks)]
            raise error

    def logs(self, rank: int) -> str:
        """What the driver has seen of a rank's output: whole lines, the newest 256 KiB of them."""
        with self._hub_lock:
            return self._kept_logs.get(rank, "") if self._hub is None else self._hub.logs(rank)

    def stacks(self) -> Stacks:
        """The Python stacks of all threads of every rank that runs, by rank; print it to see equal ones once. The ranks
        go on. For a run that another thread drives, as after `start`; takes a second or so.

        Raises:
            RuntimeError: the run is over, or hasn't begun.
            TimeoutError: no answer came.
        """
        hub = self._hub
        if hub is None:
            raise RuntimeError(f"{self.name} does not run")
        told = hub.stacks(_STACKS_S)
        if told is None:
            raise TimeoutError(f"the stacks of {self.name} did not come within {_STACKS_S:g} s")
        return Stacks(*told)

    def result(self, timeout: float | None = None) -> Any:
        """Rank 0's value; waits for the end of the run.

        Raises:
            TrainingError: the run failed.
            TimeoutError: it is not over after `timeout` seconds; it goes on.
        """
        self._wait(timeout)
        return self._load(0)

    def results(self, timeout: float | None = None) -> list[Any]:
        """What every rank returned, by rank; waits for the end of the run.

        A value of a rank other than 0 that doesn't pickle or is larger than `spark.phalanx.results.maxBytes` is an
        `UnavailableResult` that says so. Raises as `result`.
        """
        self._wait(timeout)
        return [self._load(rank) for rank in range(self._num_ranks)]

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Ends every rank; `result` then raises TrainingError of kind `cancelled`. Returns at once; a run that is over
        stays as it is."""
        with self._hub_lock:
            self._cancelled = reason
            if self._hub is not None:
                self._hub.stop(reason)

    def _wait(self, timeout: float | None) -> None:
        if not self._over.wait(timeout):
            raise TimeoutError(f"{self.name} is not over after {timeout} s; it goes on")
        if self._error is not None:
            raise self._error

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _phase(self, name: str, rank: int | None, seconds: float) -> None:
        self.phases.append(Phase(name, rank, seconds))

    def _path(self, rank: int) -> str:
        return os.path.join(self._files.name, f"rank-{rank}")

    def _keep_results(self, hub: _native.Hub) -> None:
        import shutil

        for rank in range(self._num_ranks):
            path = hub.result_path(rank)
            if path is not None:
                shutil.move(path, self._path(rank))

    def _load_if_any(self, rank: int) -> Any:
        if not os.path.exists(self._path(rank)):
            return UnavailableResult(f"rank {rank} left no result")
        try:
            return self._load(rank)
        except TrainingError as error:
            return UnavailableResult(str(error))

    def _load(self, rank: int) -> Any:
        try:
            with open(self._path(rank), "rb") as file:
                return pickle.load(file)
        except FileNotFoundError:
            if not os.path.isdir(self._files.name):
                problem = "the results went with the Spark application; ask for them before it stops"
                raise TrainingError(problem) from None
            return None  # a file that left by os._exit and had given none
        except Exception as error:
            problem = f"the result of rank {rank} can't be read back here: {type(error).__name__}: {error}"
            raise TrainingError(problem, {"message": problem, "rank": rank}) from error


class _Show:
    """Writes output to the stdout that the caller has at the time; gives up, once and loudly, if it can't."""

    def __init__(self) -> None:
        self._broken = False

    def __call__(self, text: str) -> None:
        if self._broken:
            return
        try:
            out = sys.stdout
            try:
                out.write(text)
            except UnicodeEncodeError:
                encoding = out.encoding or "ascii"
                out.write(text.encode(encoding, "backslashreplace").decode(encoding))
            out.flush()
        except Exception as error:
            self._broken = True
            logger.warning("The ranks' output can't be shown any more (%s); the run goes on.", error)
