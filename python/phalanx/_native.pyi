"""The Rust core, as Python sees it. Every blocking call releases the GIL and answers Ctrl-C within 50 ms."""

from collections.abc import Callable, Sequence
from typing import Any, final

__all__ = [
    "VERSION",
    "Hub",
    "NativeError",
    "StoreServer",
    "new_job",
    "read_settings",
    "render_failure",
    "run_node",
    "setting_keys",
    "unknown_settings",
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
        ("finished", json)          every rank ended well and every result is here; a line for each, as in a Failure
        ("failed", json)            the Failure; nothing of the job is left on the nodes that can be reached
        The last two come once, after all output."""
    def result_path(self, rank: int) -> str | None:
        """The file that holds what a rank left as its result, until close()."""
    def node_report(self, report: bytes) -> None:
        """Takes what run_node returned on a node that couldn't reach the hub."""
    def stage_ended(self, problem: str | None) -> None:
        """The Spark stage is over: well (None), or with this message."""
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
    host: str,
    gpus: Sequence[str],
    program: Sequence[str],
    env: dict[str, str],
    work_dir: str,
    guard: str,
    all_gather: Callable[[str], Sequence[str]] | None,
) -> bytes:
    """The node's end of a job: joins the hub, starts this partition's ranks, watches them, ends them.

    Returns b"" when the hub has everything, else a report for Hub.node_report. A failure of a rank is reported to
    the hub and does not raise here; NativeError means that the node could not do its part.
    """

@final
class StoreServer:
    """A server of c10d's TCPStore protocol, on one thread, until close()."""

    def __new__(
        cls, host: str = "127.0.0.1", port: int = 0, allowed: Sequence[str] | None = None
    ) -> StoreServer: ...
    @property
    def port(self) -> int: ...
    def close(self) -> None: ...
