"""The Rust core, as Python sees it. Every blocking call releases the GIL and answers Ctrl-C within 50 ms."""

from collections.abc import Callable, Sequence
from typing import Any, final

__all__ = [
    "VERSION",
    "Call",
    "Collective",
    "Hub",
    "NativeError",
    "StoreServer",
    "Ticket",
    "end_pools",
    "new_job",
    "pool_usage",
    "read_activity",
    "read_settings",
    "render_failure",
    "run_node",
    "serve_guard",
    "setting_keys",
    "unknown_settings",
    "use_huge_pages",
]

VERSION: str

class NativeError(RuntimeError):
    """An error of the Rust core. `kind` is one of invalid, timeout, unreachable, refused, protocol, io, cancelled,
    closed, panic."""

    kind: str

def new_job(
    *,
    name: str,
    ranks: int,
    tasks: int,
    use_gpu: bool,
    settings: dict[str, str],
) -> bytes:
    """A job as JSON, with a fresh id, under these `spark.phalanx.*` settings."""

def setting_keys() -> list[str]:
    """The keys of all settings."""

def read_settings(settings: dict[str, str]) -> tuple[float, str]:
    """Checks all settings; returns those that no job carries: the seconds to wait for task slots, and the stage (auto,
    jvm or python). A bad value is a NativeError that names the key, the value and what is allowed."""

def unknown_settings(keys: list[str]) -> list[str]:
    """A sentence for every `spark.phalanx.*` key among `keys` that is no setting, with the nearest one that is."""

def render_failure(failure: str) -> str:
    """A Failure (JSON) as a person reads it: cause, traceback, last lines, where the rest is, the other ranks."""

@final
class Hub:
    """The driver's end of one job: tasks join it, output, phases, results and failures arrive at it."""

    def __new__(cls, job: bytes, *, bind: str, advertise: str, work_dir: str) -> Hub:
        """Listens on the address `bind` ("" for the one that `advertise` resolves to), on a port of the system's.
        Results wait for close() in a folder of their own under `work_dir`."""
    @property
    def address(self) -> str:
        """Where tasks reach the hub: host:port, IPv6 in brackets."""
    @property
    def token(self) -> bytes:
        """The job's 32-byte secret. Never log it, never put it into arguments or settings."""
    def next(self, timeout: float) -> tuple[str, Any] | None:
        """The next event, or None after `timeout` seconds:
        ("output", text)            whole, prefixed lines to show
        ("phase", (name, rank, s))  rank got to a phase s seconds after the hub opened; rank is -1 for the job's own
        ("status", text)            where the job is, in words
        ("report", (rank, step, json))  a rank told by phalanx.report how far it is
        ("resubmit", attempt)       a task was lost: end the stage, submit another whose nodes begin with this attempt
        ("finished", json)          every rank ended well and every result is here; a line for each, as in a Failure
        ("failed", json)            the Failure; nothing of the job is left on the nodes that can be reached
        Of the last two one comes, once, after all output."""
    def result_path(self, rank: int) -> str | None:
        """The file that holds what a rank left as its result, until close()."""
    def node_report(self, report: bytes) -> None:
        """Takes what run_node returned on a node that couldn't reach the hub."""
    def stage_ended(self, attempt: int, problem: str | None) -> None:
        """The Spark stage that was submitted for `attempt` (0, or what "resubmit" said) is over: well (None), or with
        this message."""
    def stacks(self, timeout: float) -> tuple[dict[int, str], str] | None:
        """What the ranks' threads are doing, by rank and as text, equal ones once; None after `timeout` seconds. Nodes
        are waited for 5 s. For a thread other than the one that waits in next()."""
    def logs(self, rank: int) -> str:
        """The newest whole lines of a rank's output that have come here, 256 KiB at most; "" for an unknown rank."""
    def stop(self, reason: str) -> None:
        """Cancels the job; next() tells when it is over."""
    def close(self) -> None:
        """Frees the socket, threads and files. A job that still runs is stopped."""

def run_node(
    job: bytes,
    payload: bytes,
    *,
    hub: str,
    token: bytes,
    partition: int,
    attempt: int,
    host: str,
    gpus: Sequence[str],
    program: Sequence[str],
    pool: Sequence[str],
    shares_pool: bool,
    env: dict[str, str],
    work_dir: str,
    guard: str,
    all_gather: Callable[[str], Sequence[str]] | None,
) -> bytes:
    """The node's end of a job: joins the hub, starts this partition's ranks, watches them, ends them.

    Returns b"" when the hub has everything, else a report for Hub.node_report. A failure of a rank is reported to
    the hub and does not raise here; NativeError means that the node could not do its part. `pool` is the program of a
    warm pool for ranks that run `program`; empty: they start cold. Where it is shared, all children of this process's
    parent have the same, and it ends with that parent.
    """

def serve_guard(
    grace_ms: int, fork: Callable[[], int]
) -> tuple[str, list[str], list[tuple[str, str]]] | None:
    """Makes this process, a fork of a warm pool, the guard of one job's ranks, which it makes by `fork` (os.fork).

    It has the control socket as descriptor 0, /dev/null as 1 to 3, a pidfd of the host as 4. Returns None when the
    guard is over; in a rank, with descriptors and session of one and signals blocked, what that is to be: program,
    arguments, environment.
    """

def use_huge_pages() -> None:
    """Moves this process's own memory to huge pages, as far as the kernel will: a fork then takes a tenth of the
    time."""

def pool_usage() -> tuple[int, int, int]:
    """The warm pools of this process: how many, their resident bytes, how many guards came from pools so far."""

def end_pools() -> None:
    """Ends all warm pools of this process, and the ranks that came from them."""

@final
class StoreServer:
    """A server of c10d's TCPStore protocol, on one thread, until close()."""

    def __new__(
        cls, host: str = "127.0.0.1", port: int = 0, allowed: Sequence[str] | None = None
    ) -> StoreServer: ...
    @property
    def port(self) -> int: ...
    def close(self) -> None: ...

@final
class Call:
    """One collective on memory. A memory is (address, bytes); it must exist, unused by others, until the call is done.

    Counts are numbers of elements, one for each rank; parts are counts with their type. Types and reductions are named
    as torch names them; `factor` is premul_sum's. A type or reduction that doesn't exist is an error here, the rest
    when the call is run.
    """

    @staticmethod
    def all_reduce(memory: tuple[int, int], dtype: str, op: str, factor: float) -> Call: ...
    @staticmethod
    def reduce(memory: tuple[int, int], dtype: str, op: str, factor: float, root: int) -> Call: ...
    @staticmethod
    def broadcast(memory: tuple[int, int], dtype: str, root: int) -> Call: ...
    @staticmethod
    def all_gather(
        source: tuple[int, int], target: tuple[int, int], parts: tuple[Sequence[int], str]
    ) -> Call: ...
    @staticmethod
    def reduce_scatter(
        source: tuple[int, int],
        target: tuple[int, int],
        counts: Sequence[int],
        dtype: str,
        op: str,
        factor: float,
    ) -> Call: ...
    @staticmethod
    def all_to_all(
        source: tuple[int, int],
        sent: Sequence[int],
        target: tuple[int, int],
        received: Sequence[int],
        dtype: str,
    ) -> Call: ...
    @staticmethod
    def gather(
        source: tuple[int, int], target: tuple[int, int], parts: tuple[Sequence[int], str], root: int
    ) -> Call: ...
    @staticmethod
    def scatter(
        source: tuple[int, int], target: tuple[int, int], parts: tuple[Sequence[int], str], root: int
    ) -> Call: ...
    @staticmethod
    def barrier() -> Call: ...

@final
class Collective:
    """One rank's end of a process group. Calls run in the order in which they were given, whichever way; after a
    failure the group is broken and every later call raises. Time-outs are seconds, None for the group's."""

    def __new__(
        cls,
        *,
        rank: int,
        ranks: Sequence[int],
        name: str,
        get: Callable[[str, float], bytes],
        set: Callable[[str, bytes], Any],
        timeout: float,
        interface: str | None,
        towards: str | None,
        activity: str | None,
    ) -> Collective:
        """Joins; returns when all ranks have. `rank` is this rank's place in `ranks`, the numbers by which errors name
        the group's ranks. `get` waits for a key of a store that all ranks share, some seconds, and
        `set` writes one. Other hosts reach this rank at the address of `interface`, else at the one that leads to the
        host `towards`. `activity` is a file to make: see read_activity."""
    def set_timeout(self, seconds: float) -> None: ...
    def run(self, calls: Sequence[Call], timeout: float | None, kept: object) -> None:
        """Runs them after all that were given before: on this thread if it is their turn, else on the group's."""
    def submit(self, calls: Sequence[Call], timeout: float | None, kept: object) -> Ticket:
        """Leaves them to the group's thread, and keeps `kept` alive until they are done."""
    def send(self, memory: tuple[int, int], to: int, tag: int, kept: object) -> Ticket | None:
        """Sends a message, without waiting for its receiver; None if that is done already."""
    def receive(
        self, memory: tuple[int, int], source: int | None, tag: int, timeout: float | None, kept: object
    ) -> Ticket:
        """Receives the oldest message with this tag from one rank, or any, beside the other calls."""
    def abort(self, why: str) -> None:
        """Breaks the group on all ranks, now."""
    def leave(self) -> None:
        """Leaves the group in good order unless something is running. Never blocks."""
    def close(self) -> None:
        """Leaves the group in good order when all calls are done. Later calls raise."""
    def disown(self) -> list[int]:
        """For a forked child, in which every call raises, and leaving does nothing: keeps this alive for good, and
        returns the descriptors that the child has of it and is to close."""

@final
class Ticket:
    """A call that was left to the group's thread."""

    def wait(self, timeout: float | None) -> None:
        """Waits for it, raising what it failed with; after `timeout` seconds a NativeError of kind timeout. A signal
        whose handler raises, as that of Ctrl-C, ends the wait and not the call."""
    def is_done(self) -> bool: ...
    def failed(self) -> bool: ...
    def source(self) -> int | None:
        """Who sent what was received."""
    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls back once it is done, on a thread for callbacks; at once if it is done already."""

def read_activity(path: str) -> tuple[int, int, int, str, int, bool, float]:
    """What a group is doing, from the file that it was given: rank, ranks, number of the operation, the operation in
    words, its bytes, whether it still runs, and for how many seconds it does or doesn't."""
