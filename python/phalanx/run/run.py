"""`Run`: one run of a job, from the caller's thread to its result.

RUN-5 (one-thread): output, phases and the outcome are handled in one thread (the caller's for `TorchDistributor.run`),
so that a notebook shows output in the cell that asked for it.
RUN-6 (over-is-over): when `drive` returns or raises, the Spark job is over, the hub is closed, and its thread is gone.
RUN-7 (output-never-fails): showing output never fails a run.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .. import _native
from ..errors import RankOutcome, TrainingError, kind_and_text
from ..plumbing.whole_file import whole_or_absent
from . import events
from .interrupts import Interrupts
from .observer import Face, Observer, Observers, Phase
from .profile import Profile, checked, take
from .rank_output import places_of, whole_output
from .results import Results

if TYPE_CHECKING:
    from ..request.run_request import RunRequest
    from ..stages.stage import Stage
    from .inputs import Inputs

logger = logging.getLogger("phalanx")

# How long one wait for the hub is; events and Ctrl-C end it at once.
_PATIENCE_S = 3600.0
# How long the ranks' stacks may take: the hub waits 5 s for its nodes.
_STACKS_S = 10.0
# How long the Spark stage may take to end once all its ranks have.
_STAGE_END_S = 30.0
# The same where the run may have had fewer tasks than it asked for.
_ELASTIC_END_S = 0.5


class Stacks(dict[int, str]):
    """The stacks of all ranks' threads, by rank; as text, equal ones once with their ranks."""

    def __init__(self, stacks: dict[int, str], text: str) -> None:
        super().__init__(stacks)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(self._text)


class Lease(Protocol):
    """What a run has to itself until it is over: GPUs of this host."""

    def release(self) -> None:
        """Gives it back; again is harmless."""


class Run:
    """One training run; made by `TorchDistributor.run` and `.start`, and by `run_local`, not by hand.

    >>> run = TorchDistributor(num_processes=2).start(train, 1e-3)
    >>> run.result()     # rank 0's value, or TrainingError
    >>> run.results()    # what every rank returned
    """

    def __init__(
        self,
        request: RunRequest,
        *,
        stage: Stage,
        lease: Lease,
        inputs: Inputs | None,
        observers: Sequence[Observer],
        face: Face,
    ) -> None:
        """`stage` runs the nodes of what is requested, `inputs` is the ranks' data, `observers` are told what happens,
        and `face` shows this object."""
        job = request.job
        self._over = threading.Event()
        self.name = job.name
        self.phases: list[Phase] = []
        self.ranks: list[RankOutcome] = []
        """What became of each rank, once the run is over."""
        self.status = "preparing"
        """Where the run is, in words: `waiting for 4 slots; 2 are free`, `waiting for 3 of 8 tasks`, `starting ranks`,
        `training, step 120`, `over`."""
        self.reports: dict[int, dict[str, Any]] = {}
        """The newest `phalanx.report` of each rank: its step, and what else it told."""
        self._job = job
        self._began = time.monotonic()
        self._hub: _native.Hub | None = None
        self._logs: _native.Hub | None = None  # the hub, also once it is closed: it keeps the newest lines
        self._hub_lock = threading.Lock()
        self._profiling = threading.Lock()
        self._profiles = itertools.count(1)
        self._cancelled: str | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._request = request
        self._results = Results(job.ranks, request.work_dir)
        self._lease = lease
        self._inputs = inputs
        self._observers = Observers(observers)
        self._face = face
        self._stage = stage

    @property
    def done(self) -> bool:
        """Whether the run is over, well or not."""
        return self._over.is_set()

    @property
    def losses(self) -> dict[int, list[tuple[int, float]]]:
        """The loss by step of each rank that reports one, as `(step, loss)`: of the 16 lowest such ranks, up to 200
        points each. Of a long run a point is the mean of several reports."""
        hub = self._logs
        return {} if hub is None else hub.losses()

    def start(self) -> Run:
        """Drives the run in a thread of its own; returns at once."""
        self._thread = threading.Thread(target=self._drive_quietly, name="phalanx-run", daemon=True)
        self._thread.start()
        return self

    def _drive_quietly(self) -> None:
        with contextlib.suppress(BaseException):  # kept for result()
            self._drive_observed(waiting=False)

    def drive(self) -> Any:
        """Runs the job to its end in this thread, showing output as it comes; returns rank 0's value.

        Raises:
            TrainingError: a rank failed, or the job could not be started.
            KeyboardInterrupt: after every rank has been ended.
        """
        return self._drive_observed(waiting=True)

    def _drive_observed(self, *, waiting: bool) -> Any:
        try:
            return self._drive_to_its_end(waiting)
        finally:  # after all that an interrupt here must not keep from happening
            self._observers.tell(lambda observer: observer.closed())

    def _drive_to_its_end(self, waiting: bool) -> Any:
        try:
            self._observers.tell(lambda observer: observer.started(self, waiting=waiting))
            bind, advertise = self._request.endpoint
            with Interrupts(self._interrupt) as interrupts:
                self._prepare(interrupts)
                hub = _native.Hub(self._job, bind=bind, advertise=advertise, work_dir=self._request.work_dir)
                with contextlib.closing(hub), contextlib.closing(self._stage):
                    try:
                        self._drive(hub, interrupts)
                    finally:
                        with self._hub_lock:
                            self._hub = None
            self._phase("returned", None, self._elapsed())
        except BaseException as error:
            self._error = error
            raise
        finally:
            self.status = "over"
            self._request.forget()
            self._stage.forget()
            self._lease.release()
            if self._inputs is not None:
                self._inputs.remove()
            try:
                self._observers.tell(lambda observer: observer.over(self._error))
                self._observers.tell(lambda observer: observer.settled(self._error))
            finally:
                self._over.set()
        # The run succeeded, whether its result can be read here or not.
        return self._results.load(0)

    def _prepare(self, interrupts: Interrupts) -> None:
        """Prepares the run's data sets, and gives the ranks their indexes."""
        if self._inputs is None:
            return
        if self._cancelled is not None:
            self._inputs.cancel()
        self.status = "preparing data"
        try:
            indexes = self._inputs.run()
        except TrainingError:
            if interrupts.pressed:
                raise KeyboardInterrupt from None
            raise
        self._request.payload.carry(indexes, self._inputs.again)
        self._phase("data prepared", None, self._elapsed())

    def _drive(self, hub: _native.Hub, interrupts: Interrupts) -> None:
        opened = self._elapsed()
        self._phase("hub open", None, opened)
        with self._hub_lock:
            self._hub = self._logs = hub
            if self._cancelled is not None:
                hub.stop(self._cancelled)
        try:
            self._stage.start(hub)
            end = None
            while end is None:
                try:
                    event = hub.next(_PATIENCE_S)
                    if event is not None:
                        end = self._take(hub, events.event_of(event), opened)
                except KeyboardInterrupt:  # that somebody raised in this thread by other means than a signal
                    interrupts.press()
            interrupts.let_through()
            self.ranks = end.ranks
            self._results.keep(hub)
            if end.failure is not None or interrupts.pressed:
                self._stage.cancel()
            elif self._job.least_tasks < self._job.tasks and not self._stage.join(_ELASTIC_END_S):
                # Tasks that got no slot are waited for by nobody.
                self._stage.cancel()
            if not self._stage.join(_STAGE_END_S):
                logger.warning("The Spark stage of %s has not ended; cancelling it.", self.name)
                self._stage.cancel()
        except BaseException:
            self._stage.cancel()
            raise
        if interrupts.pressed:
            raise KeyboardInterrupt
        if end.failure is not None:
            error = TrainingError.from_failure(end.failure, end.text)
            if error.__cause__ is None:
                error.__cause__ = self._stage.error
            error.results = self._results.load_what_there_is()
            raise error

    def _take(self, hub: _native.Hub, event: events.Event, opened: float) -> events.Outcome | None:
        """Handles an event; returns the last one."""
        match event:
            case events.Output(text):
                self._observers.tell(lambda observer: observer.output(text))
            case events.Status(text):
                self.status = text
            case events.Reported(rank, report):
                self.reports[rank] = report
                self._observers.tell(lambda observer: observer.reported(rank, report))
            case events.EveryReport(rank, reports, left_out):
                self._observers.tell(lambda observer: observer.every_report(rank, reports, left_out))
            case events.Restarted(restart):
                self._observers.tell(lambda observer: observer.restarted(restart))
            case events.PhaseReached(name, reached_by, seconds):
                self._phase(name, reached_by, opened + seconds)
            case events.Resubmit(attempt):
                self._stage.start(hub, attempt)
            case events.SeatWanted(attempt, partition):
                self._stage.add_seat(attempt, partition)
            case events.SeatTaken(attempt, partition, stage):
                self._stage.end_other_seats(attempt, partition, stage)
            case events.Placed(attempt, hosts) if self._inputs is not None:
                self._inputs.placed(attempt, hosts, functools.partial(self._stage.carrier_spec, hub, attempt))
            case events.Carried(attempt, host) if self._inputs is not None:
                self._inputs.carried(attempt, host)
            case events.Outcome():
                return event
        return None

    def logs(self, rank: int, start: int | None = None, size: int | None = None) -> str:
        """What a rank has written to stdout and stderr.

        `logs(rank)` is what the driver has, at once: whole lines, the newest 256 KiB of them. All ranks together have
        96 MiB, so of more than 384 ranks each has less.

        With `start` or `size` it is the output itself, from the rank's host: `size` bytes (all that there are, if
        None) from the offset `start` in bytes on, which counts from the end where it is negative. `logs(3, 0)` is all
        of rank 3, `logs(3, -10_000)` its last 10,000 bytes. What is not UTF-8 is replaced. Where the host keeps the
        beginning no longer, a line that begins with `[phalanx]` says how much is missing. Once the ranks' node is over
        the output is read in `spark.phalanx.logs.directory`, if this process can read there, or in the files of
        `local_mode=True`; else it is what the driver has, and a first line says so.

        Raises:
            ValueError: the run has no such rank, or `size` is negative.
        """
        if start is None and size is None:
            return "" if self._logs is None else self._logs.logs(rank)
        return b"".join(self._output(rank, start or 0, size)).decode(errors="replace")

    def _output(self, rank: int, start: int, size: int | None) -> Iterator[bytes]:
        if not 0 <= rank < self._job.ranks:
            raise ValueError(f"{self.name} has no rank {rank}, only ranks 0 to {self._job.ranks - 1}")
        if size is not None and size < 0:
            raise ValueError(f"size is {size}, but has to be 0 or more bytes")
        copied, own = self._job.logs_folder, os.path.join(self._request.work_dir, f"phalanx-{self._job.id}")
        places = places_of(self._hub, rank, [copied, own] if copied else [own])
        return whole_output(places, self.logs(rank), start, size)

    def snapshot(self) -> dict[str, Any]:
        """The run now, for whoever shows it: its state, phases, restarts, ranks, newest lines, losses and failure, with
        the keys of `rust/types/src/run_snapshot.rs`; what isn't known is None. At most 1,000 ranks are listed. Also
        of a run that is over. Cheap: however often it is called, the run makes four a second at most."""
        hub = self._logs
        told = self._job.snapshot(self._elapsed()) if hub is None else hub.snapshot()
        if self._error is not None:
            told = _native.ended_snapshot(told, kind_and_text(self._error))
        elif self._over.is_set():
            told = _native.ended_snapshot(told, None)
        snapshot: dict[str, Any] = json.loads(told)
        return snapshot

    def plot(self) -> Any:
        """The run as a figure of matplotlib: its phases, the losses by step (see `losses`), the step of each rank.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        return self._face.figure(self)

    def download_logs(self, folder: str | os.PathLike[str]) -> list[str]:
        """Writes each rank's output to a file in `folder`, `rank-0.log` and so on; returns their paths. While the ranks
        run it is all of it, from their hosts, piece by piece; of a run that is over what there is (see `logs`). A rank
        that has written nothing has no file. Makes the folder if need be."""
        os.makedirs(folder, exist_ok=True)
        paths = []
        for rank in range(self._job.ranks):
            pieces = filter(None, self._output(rank, 0, None))
            first = next(pieces, b"")
            if first:
                path = os.path.join(folder, f"rank-{rank}.log")
                with whole_or_absent(path) as file:
                    file.write(first)
                    file.writelines(pieces)
                paths.append(path)
        return paths

    def _repr_html_(self) -> str:
        return self._face.html(self)

    def _ipython_display_(self) -> None:
        """In a notebook: the run, drawn anew until it is over."""
        self._face.show(self, self._over)

    def stacks(self) -> Stacks:
        """The Python stacks of all threads of every rank that runs, by rank; print it to see equal ones once. The ranks
        go on. For a run that another thread drives, as after `start`; takes a second or so.

        Raises:
            RuntimeError: the run is over, or hasn't begun.
            TimeoutError: no answer came.
        """
        hub = self._hub
        if hub is None:
            raise RuntimeError(f"{self.name} is not running")
        told = hub.stacks(_STACKS_S)
        if told is None:
            raise TimeoutError(f"the stacks of {self.name} did not come within {_STACKS_S:g} s")
        return Stacks(*told)

    def profile(
        self,
        seconds: float = 10.0,
        ranks: Iterable[int] = (0,),
        path: str | os.PathLike[str] = "profile.json",
    ) -> Profile:
        """What these ranks (64 at most) do in the next `seconds` (60 at most), as a file in Chrome's trace format for
        ui.perfetto.dev: each rank is a process, `rank 3 (host)`, with its threads' Python stacks, 100 samples a second,
        and torch's operations where it has imported a torch that can trace all threads. Ranks begin within a second or
        so, and all have the driver's clock. A `path` that ends with `.gz` is gzipped. The training code needs nothing
        for it, and goes on. For a run that another thread drives, as after `start`.

        Returns:
            The path, the ranks that are in the file, and why others are not, or not with all: one that ended.

        Raises:
            ValueError: too long, too many ranks, or one that the run doesn't have.
            FileNotFoundError: the folder of `path` is not there.
            RuntimeError: the run doesn't run, takes a profile already, or no rank gave one.
        """
        wanted, path = checked(seconds, ranks, path, self._job.ranks)
        hub = self._hub
        if hub is None:
            raise RuntimeError(f"{self.name} is not running")
        if not self._profiling.acquire(blocking=False):
            raise RuntimeError(f"a profile of {self.name} is being taken already")
        try:
            hosts = {line["rank"]: line["host"] or "" for line in self.snapshot()["ranks"]}
            return take(hub, next(self._profiles), seconds, wanted, path, hosts)
        finally:
            self._profiling.release()

    def result(self, timeout: float | None = None) -> Any:
        """Rank 0's value; waits for the end of the run.

        Raises:
            TrainingError: the run failed.
            TimeoutError: it is not over after `timeout` seconds; it goes on.
        """
        self._wait(timeout)
        return self._results.load(0)

    def results(self, timeout: float | None = None, *, strict: bool = True) -> list[Any]:
        """What every rank returned, by rank; waits for the end of the run.

        Of ranks other than 0 a value may be missing: it doesn't pickle, or is larger than
        `spark.phalanx.results.maxBytes`. With `strict=False` an `UnavailableResult` that says why is in its place.

        Raises as `result`, and:
            MissingResultError: a value is missing, and `strict`. Its `results` has the others.
        """
        self._wait(timeout)
        return self._results.load_all(strict=strict)

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Ends every rank; `result` then raises TrainingError of kind `cancelled`. Returns at once; a run that is over
        stays as it is."""
        with self._hub_lock:
            self._cancelled = reason
            if self._inputs is not None:
                self._inputs.cancel()
            if self._hub is not None:
                self._hub.stop(reason)

    def _interrupt(self) -> None:
        """As `cancel`, between any two lines of the thread that drives: it may hold the lock itself."""
        self._cancelled = "interrupted (Ctrl-C)"
        if self._inputs is not None:
            self._inputs.cancel()
        hub = self._hub
        if hub is not None:
            with contextlib.suppress(_native.NativeError):  # closed meanwhile
                hub.stop(self._cancelled)

    def _wait(self, timeout: float | None) -> None:
        if not self._over.wait(timeout):
            raise TimeoutError(f"{self.name} did not end within {timeout} s and is still running")
        self._observers.tell(lambda observer: observer.settled(self._error))
        if self._error is not None:
            raise self._error

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _phase(self, name: str, rank: int | None, seconds: float) -> None:
        phase = Phase(name, rank, seconds)
        self.phases.append(phase)
        self._observers.tell(lambda observer: observer.phase(phase))
