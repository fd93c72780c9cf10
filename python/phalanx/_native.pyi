"""The Rust core, as Python sees it. Every blocking call releases the GIL and answers Ctrl-C within 50 ms."""

from collections.abc import Callable, Sequence
from typing import Any, final

from ._native_models import ModelAnswer, ModelConnection, ModelServer, ModelWork
from ._native_preflight import (
    check_train_object,
    executor_cores,
    explain_stage,
    lease_gpus,
    look_before_restart,
    look_for_slots,
    may_start,
    num_processes,
    plan,
    preflight_keys,
    profile,
    release_gpus,
)
from .stages.here import Here, Home

__all__ = ["STATE_COLORS", "VERSION", "BatchColumns", "BlockClient", "Call", "DataPlan", "Hub", "Job"]
__all__ += ["ModelAnswer", "ModelConnection", "ModelServer", "ModelWork", "NativeError", "NodeSpec"]
__all__ += ["ProcessGroup", "RankWords", "StoreServer", "WantedRows", "Work", "check_train_object"]
__all__ += ["hub_endpoint", "is_own_host", "lease_gpus", "look_before_restart", "look_for_slots", "may_start"]
__all__ += ["num_processes", "plan", "pool_usage", "preflight_keys", "profile", "rank_contract"]
__all__ += ["rank_variables", "read_activity", "read_settings", "read_texts", "release_gpus", "run_carrier"]
__all__ += ["run_line", "run_node", "run_page", "serve_guard", "setting_keys", "unknown_settings"]
__all__ += ["use_huge_pages"]
__all__ += [
    "end_pools",
    "ended_snapshot",
    "even_rows",
    "executor_cores",
    "explain_stage",
    "fail_for_test",
    "hosts_in_cooldown",
]
__all__ += ["hub_endpoint", "is_own_host", "lease_gpus", "look_before_restart", "look_for_slots", "may_start"]
__all__ += ["num_processes", "plan", "pool_usage", "preflight_keys", "profile", "rank_contract"]
__all__ += ["rank_variables", "read_activity", "read_settings", "read_texts", "release_gpus", "run_carrier"]
__all__ += ["run_line", "run_node", "run_page", "serve_guard", "setting_keys", "unknown_settings"]
__all__ += ["use_huge_pages"]

VERSION: str

# slots_timeout, stage, progress, connect, node_timeout, data_order, max_restarts, max_preemptions, gang, predict_idle.
_Settings = tuple[float, str, str, str, float, str, int, int | None, str, float]
_Memory = tuple[int, int]  # an address and its bytes
# The strings or bytes of a block as Arrow has them: where each row begins and the last ends, whether by 64 bits, their
# bytes, and where some are null, a byte for each row that says so. All of it has to stay until a call is over.
_TextMemory = tuple[_Memory, bool, _Memory, _Memory | None]

class NativeError(RuntimeError):
    """An error of the Rust core. `kind` is one of timeout, unreachable, refused, protocol, io, cancelled, closed,
    peer_lost, panic; of a process group's operations any of the core's. What the caller did wrong is a ValueError
    (invalid), TypeError (wrong_type), FileNotFoundError (missing_file), IsADirectoryError (directory) or RuntimeError
    (state), which have a `kind`, too."""

    kind: str

def rank_contract() -> dict[str, str | int]:
    """The names that a node and its ranks agree on: how the core calls each, and what it is."""

@final
class DataPlan:
    """Which rows of a data set a rank takes at each step.

    `block_rows` has the rows of each block. An epoch's order is made of blocks of `even_rows` rows, or of these blocks
    where that is 0. `shuffle` is no, windows or full; `uneven` drop, wrap or pad."""

    rows_a_step: int
    """How many rows all ranks together take in a step."""

    def __new__(
        cls,
        block_rows: Sequence[int],
        *,
        even_rows: int,
        shuffle: str,
        uneven: str,
        seed: int,
        batch_size: int,
        rank: int,
        world_size: int,
    ) -> DataPlan: ...
    def steps_from(self, row: int) -> int:
        """How many steps an epoch has from a row of its order on."""
    def blocks_from(self, epoch: int, row: int, count: int) -> list[int]:
        """The first `count` blocks that an epoch needs from a row of its order on, the soonest needed first."""
    def take(
        self, epoch: int, row: int, *, first: int, count: int, every: int
    ) -> tuple[WantedRows, bytes | None]:
        """The rank's rows in at most `count` steps of those that begin at `row` of the epoch's order: the steps
        `first`, `first + every` and so on. With pad also a byte for each row which says whether it counts."""

@final
class WantedRows:
    """Rows that a plan took, in their order."""

    blocks: list[int]
    """The numbers of the blocks that have them, each once."""

    def __len__(self) -> int: ...
    def places(self) -> tuple[bytes, bytes]:
        """For each row which of `blocks` has it (32 bits), and its number there (64 bits), in the machine's byte
        order."""
    def texts(self, blocks: Sequence[_TextMemory], is_text: bool) -> list[Any]:
        """The rows of strings, if `is_text`, or of bytes; a null is None. Raises `ValueError` where one isn't there."""

@final
class BatchColumns:
    """Columns of numbers, from which batches are copied: for each the bytes of a row, and its memory, a list with the
    rows of each of `wanted.blocks`, or the wanted rows in order. `kept` owns it, and nobody may write there."""

    def __new__(
        cls, wanted: WantedRows | None, columns: Sequence[tuple[int, _Memory | list[_Memory]]], kept: object
    ) -> BatchColumns: ...
    def copy(self, first: int, count: int, to: Sequence[int]) -> None:
        """Copies `count` rows from the `first` on of each column to an address where there is room for them.

        Raises `ValueError` where a row is not there, or would be copied onto a column."""

def even_rows(rows: Sequence[int], bytes: Sequence[int], bytes_of_one: int) -> int:
    """How many rows a block of an epoch's order is to have, for blocks with so many rows and bytes each: as many as the
    largest, but never so many that one would have more than twice `bytes_of_one`."""

def read_texts(block: _TextMemory, is_text: bool) -> list[Any]:
    """All rows of a block, as `WantedRows.texts` gives them."""

@final
class BlockClient:
    """Fetches blocks of data sets from the nodes of other hosts; `access` is the rank's file `FILE_BLOCKS`."""

    def __new__(cls, access: bytes) -> BlockClient: ...
    def fetch(self, host: str, file: str, start: int, length: int, into: str) -> None:
        """Writes the bytes of `file` on `host` to the file `into`, which is there; blocks for as long as some come.

        Raises `FileNotFoundError` where they are not there any more, `RuntimeError` where nobody serves them on that
        host, and `NativeError` where it is lost (`peer_lost`), refuses or is refused, or the disk takes no more (`io`).
        """

@final
class Job:
    """What one run is: how many ranks over how many tasks, under which `spark.phalanx.*` settings.

    Immutable; has a fresh id."""

    def __new__(
        cls, *, name: str, ranks: int, tasks: int, use_gpu: bool, settings: dict[str, str]
    ) -> Job: ...
    @property
    def id(self) -> str:
        """Unique to the run; ranks see it as TORCHELASTIC_RUN_ID."""
    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def tasks(self) -> int:
        """How many tasks the ranks are spread over."""
    @property
    def least_tasks(self) -> int:
        """With how many of them the run goes on."""
    def snapshot(self, seconds: float) -> str:
        """What Hub.snapshot says of a run that was asked for so long ago, and whose hub is not open."""
    @property
    def checkpoint_name(self) -> str:
        """What the folder of the run's checkpoints is called."""
    @property
    def checkpoint_owner(self) -> str | None:
        """Whose they are, as JSON; None where the name was given, since whoever gives it shares them."""
    @property
    def logs_folder(self) -> str | None:
        """The folder, of this machine or shared, to which the logs are copied at the ranks' end, if there is one."""
    @property
    def logs_uri(self) -> str | None:
        """Where the logs are copied to, if only a JVM of Spark's can write there."""

def setting_keys() -> list[str]:
    """The keys of all settings."""

def read_settings(settings: dict[str, str]) -> _Settings:
    """Checks all settings; returns those that a driver goes by itself. A bad value is a ValueError that names it."""

def rank_variables(settings: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """The variables that a caller gives its ranks: what `spark.phalanx.env.pass` names of this process's, and `given`,
    which wins. A name that can't be, or is Phalanx's to set, is a ValueError that doesn't show the value."""

def hosts_in_cooldown() -> list[tuple[str, int, float, str]]:
    """The hosts that runs of this process leave alone now: each one's name, how often it failed, in how many seconds it
    is taken again, and the last failure in a sentence."""

def unknown_settings(keys: list[str]) -> list[str]:
    """A sentence for every `spark.phalanx.*` key among `keys` that is no setting, with the nearest one that is."""

def fail_for_test(kind: str, message: str) -> None:
    """Fails by this kind, or panics if there is none such: for the test that both become exceptions."""

@final
class Hub:
    """The driver's end of one job: tasks join it, output, phases, results and failures arrive at it."""

    def __new__(cls, job: Job, *, bind: str, advertise: str, work_dir: str) -> Hub:
        """Listens on the address `bind` ("" for the one that `advertise` resolves to), on a port of the system's.
        Results wait for close() in a folder of their own under `work_dir`."""
    @property
    def address(self) -> str:
        """Where tasks reach the hub: host:port, IPv6 in brackets."""
    def node_spec(
        self,
        attempt: int,
        *,
        python: str | None,
        env: dict[str, str],
        local_gpus: Sequence[str],
        by: str | None = None,
    ) -> bytes:
        """What the nodes of an attempt (0, or what "resubmit" said) are told, for NodeSpec; opaque, and has the job's
        secret in it: never log it. Ranks are run by `python`, else by that of the node's own process, with the
        application's variables `env`. `local_gpus` are the driver's GPUs, where they are for its own node or for the
        tasks of a local master. `by` is where nodes connect in the place of the hub's own address: host:port."""
    def next(self, timeout: float) -> tuple[str, str, str] | None:
        """The next event, or None after `timeout` seconds: its kind, a text, and its fields as a JSON object, "" where
        it has none, as `rust/job/src/driver/event.rs` lists them. `phalanx.run.events` reads them. Of `finished` and
        `failed` one comes, once, after all output."""
    def result_path(self, rank: int) -> str | None:
        """The file that holds what a rank left as its result, until close()."""
    def stage_ended(self, attempt: int, problem: str | None) -> None:
        """The Spark stage that was submitted for `attempt` is over: well (None), or with this message."""
    def stage_seen(self, attempt: int, running: int | None, slots: int, free: int) -> None:
        """What Spark shows of the stage that was submitted for `attempt`: how many of its tasks run (None if it isn't
        submitted yet), how many task slots there are, and how many of these are free. Told once a second until tasks
        run, it lets the time to join begin then."""
    def decommissioned(self, tasks: Sequence[int]) -> None:
        """Spark decommissions the executors of the tasks with these attempt ids; told again it is no news."""
    def stacks(self, timeout: float) -> tuple[dict[int, str], str] | None:
        """What the ranks' threads are doing, by rank and as text, equal ones once; None after `timeout` seconds. For a
        thread other than the one that waits in next()."""
    def logs(self, rank: int) -> str:
        """The newest whole lines of a rank's output that have come here, also once it is closed; "" for none."""
    def read_output(
        self, rank: int, start: int, bytes: int, timeout: float
    ) -> tuple[int, int, str, bytes] | None:
        """A piece of a rank's output from its host, 128 KiB at most: the offset of its first byte, where the output
        ends by now, why bytes before the piece are missing ("" where none are), and the bytes. A `start` below 0 counts
        from the end. None after `timeout` seconds; a NativeError says so where no node can be asked."""
    def read_profile(
        self, rank: int, start: int, bytes: int, timeout: float, *, number: int, millis: int
    ) -> tuple[int, int, bytes] | None:
        """A piece of the profile of this number, for which the first call asks the rank, and which is so many
        milliseconds long: how long its file is (0 until it is there), the clock of the rank's host in microseconds
        since 1970, and the bytes. None after `timeout` seconds; a NativeError says so where the rank can't give one."""
    def snapshot(self) -> str:
        """The run now, also once it is closed: the JSON of `rust/types/src/run_snapshot.rs`; four a second at most."""
    def losses(self) -> dict[int, list[tuple[int, float]]]:
        """The loss by step of the 16 lowest ranks that tell one, also once it is closed: fewer than 200 points each."""
    def stop(self, reason: str) -> None:
        """Cancels the job; next() tells when it is over."""
    def close(self) -> None:
        """Frees the socket, threads and files. A job that still runs is stopped."""

def hub_endpoint(driver_bind: str, driver_host: str, set_bind: str, set_host: str) -> tuple[str, str]:
    """Where a hub binds and what tasks are told, from Spark's driver and from settings; "" for what nobody says."""

def is_own_host(host: str) -> bool:
    """Whether it is an address or a name of this host's. Waits for the resolver, 10 s at most."""

def ended_snapshot(snapshot: str, problem: tuple[str, str] | None) -> str:
    """The snapshot of a run that is over for its caller: well, or by a problem, its kind and the whole story."""

STATE_COLORS: dict[str, str]
"""The colours of the states of runs and ranks; a state that isn't there has that of `waiting`."""

def run_page(snapshot: str, note: str = "") -> str:
    """A run as HTML, from a snapshot's JSON, for a cell; of one that goes on the note is said, too."""

def run_line(snapshot: str, columns: int | None = None) -> str:
    """A run in one line of so many columns at most."""

@final
class NodeSpec:
    """What a hub tells each node, unpacked in the node's own process."""

    def __new__(cls, packed: bytes) -> NodeSpec:
        """Reads what Hub.node_spec made; a NativeError says so where that was another version."""
    @property
    def tasks(self) -> int: ...

def run_carrier(spec: NodeSpec, *, number: int, wanted: Sequence[str]) -> bool:
    """Serves the blocks of this host to the ranks of an attempt, if its name (`uname -n`) is among those `wanted`.

    Returns False at once where it isn't, and True when the attempt or the run is over, another carrier of this host was
    there before, or the hub is gone. `number` is this carrier's own in the run. Raises
    NativeError where it can't do its part.
    """

def run_node(
    spec: NodeSpec,
    payload: bytes,
    here: Here,
    home: Home,
    *,
    in_executor: bool = False,
    copy_files: Callable[[list[str], str], object] | None = None,
) -> None:
    """The node's end of a job: joins the hub, starts this partition's ranks, watches them, ends them.

    The hub has everything when it returns. A failure of a rank is reported to the hub and does not raise here;
    NativeError means that the node could not do its part.

    A warm pool is this process's; in a Python worker of Spark's all children of this process's parent have the same,
    and it ends with that parent. `in_executor` says that stderr is an executor's log. `copy_files` copies files to a
    folder by its URI.
    """

def serve_guard(
    grace_ms: int, owned: bool, fork: Callable[[], int]
) -> tuple[str, list[str], list[tuple[str, str]]] | None:
    """Makes this process, a fork of a warm pool, the guard of one job's ranks, which it makes by `fork` (os.fork).

    It has the control socket as descriptor 0, /dev/null as 1 to 3, and as 4 a pidfd of the client, or where it is
    `owned` of its owner, to which it may be left. Returns None when the guard is over; in a rank, with descriptors and
    session of one and signals blocked, what that is to be: program, arguments, environment.
    """

def use_huge_pages() -> None:
    """Moves this process's own memory to huge pages, as far as the kernel will: a fork then takes a tenth of the
    time."""

def pool_usage() -> tuple[int, int, int]:
    """The warm pools of this process: how many, their resident bytes, how many guards came from pools so far."""

def end_pools() -> None:
    """Ends all warm pools of this process, and the ranks that came from them."""

@final
class RankWords:
    """The words that a rank shares with its node, for what takes a fence; `path` is that of their memory."""

    def __new__(cls, path: str) -> RankWords: ...
    def ask(self, step: int) -> bool:
        """Asks for a step; whether the rank may begin it. Never waits."""
    def go_on(self, step: int) -> None:
        """Begins this step though the rank is frozen."""

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
    def all_reduce(memory: _Memory, dtype: str, op: str, factor: float) -> Call: ...
    @staticmethod
    def reduce(memory: _Memory, dtype: str, op: str, factor: float, root: int) -> Call: ...
    @staticmethod
    def broadcast(memory: _Memory, dtype: str, root: int) -> Call: ...
    @staticmethod
    def all_gather(source: _Memory, target: _Memory, parts: tuple[Sequence[int], str]) -> Call: ...
    @staticmethod
    def all_gather_sized(source: _Memory) -> Call:
        """Has no target: nobody needs to know how much the others have. `gathered` gives it, once the call is done."""
    def gathered(self) -> list[bytearray]: ...
    @staticmethod
    def reduce_scatter(
        source: _Memory,
        target: _Memory,
        counts: Sequence[int],
        dtype: str,
        op: str,
        factor: float,
    ) -> Call: ...
    @staticmethod
    def all_to_all(
        source: _Memory,
        sent: Sequence[int],
        target: _Memory,
        received: Sequence[int],
        dtype: str,
    ) -> Call: ...
    @staticmethod
    def gather(source: _Memory, target: _Memory, parts: tuple[Sequence[int], str], root: int) -> Call: ...
    @staticmethod
    def scatter(source: _Memory, target: _Memory, parts: tuple[Sequence[int], str], root: int) -> Call: ...
    @staticmethod
    def barrier() -> Call: ...

@final
class ProcessGroup:
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
        cut_timeout: float | None,
        activity: str | None,
    ) -> ProcessGroup:
        """Joins; returns when all ranks have. `rank` is this rank's place in `ranks`, the numbers by which errors name
        the group's ranks. `get` waits for a key of a store that all ranks share, some seconds, and
        `set` writes one. Other hosts reach this rank at the address of `interface`, else at the one that leads to the
        host `towards`. Who acknowledges nothing there for `cut_timeout` seconds is
        given up; None for as long as the kernel tries. `activity` is a file to make: see read_activity."""
    def set_timeout(self, seconds: float) -> None: ...
    def run(self, calls: Sequence[Call], timeout: float | None, kept: object) -> None:
        """Runs them after all that were given before: on this thread if it is their turn, else on the group's."""
    def submit(self, calls: Sequence[Call], timeout: float | None, kept: object) -> Work:
        """Leaves them to the group's thread, and keeps `kept` alive until they are done."""
    def send(self, memory: _Memory, to: int, tag: int) -> None:
        """Sends a message beside the other calls, without waiting for these or for its receiver."""
    def receive(
        self, memory: _Memory, source: int | None, tag: int, timeout: float | None, kept: object
    ) -> Work:
        """Receives the oldest message with this tag from one rank, or any, beside the other calls."""
    def abort(self, why: str) -> None:
        """Breaks the group on all ranks, now."""
    def leave(self) -> None:
        """Leaves the group in good order unless something is running. Never blocks."""
    def close(self) -> None:
        """Leaves the group in good order when all calls are done. Later calls raise."""

@final
class Work:
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

def read_activity(path: str) -> tuple[int, int, int, str, int, bool, float, float]:
    """What a group is doing, from the file that it was given: rank, ranks, number of the operation, the operation in
    words, its bytes, whether it still runs, for how many seconds it does or doesn't, and for how many all of
    its operations ran."""
