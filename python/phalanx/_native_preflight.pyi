"""The part of `_native` that is about the checks before a run; there is no such module by itself."""

def preflight_keys() -> list[list[str]]:
    """What `plan`, `may_start`, `look_for_slots`, `profile` and `executor_cores` ask of Spark's configuration."""

def num_processes(number: int | None, shown: str) -> int:
    """Checks the number of ranks; None for what is no int, and how that shows."""

def check_train_object(
    *, path: str | None, is_file: bool, is_directory: bool, other: str | None, keywords: list[str]
) -> None:
    """Checks what is to run: a path and what is there, or `other`, how no function shows; neither for a function."""

def plan(
    ranks: int, *, local_mode: bool, use_gpu: bool, driver_has_gpus: bool, conf: dict[str, str]
) -> tuple[int, int, str | None]:
    """How many ranks there will be, over how many tasks, and a warning."""

def may_start(*, conf: dict[str, str]) -> str | None:
    """Refuses a distributed run that can't start on this cluster; returns a warning."""

# Of a task: cores, GPUs; of an executor of the run's own: cores, GPUs, their script and vendor, MiB of overhead.
_Profile = tuple[int, int, tuple[int, int, str, str, int] | None]
_Wait = tuple[float, str | None] | None

def profile(
    *, use_gpu: bool, local_mode: bool, of_dataframe: bool, spark: str, conf: dict[str, str]
) -> _Profile | None:
    """What a run takes on this version of Spark; None for what the application takes."""

def look_for_slots(
    tasks: int,
    *,
    master: str,
    conf: dict[str, str],
    profile: _Profile | None,
    timeout: float,
    there: int | None,
    waited: float,
    looks: int,
) -> _Wait:
    """Whether a run gets its slots: None if they are `there`, or where nobody can tell (`there` is None); else the
    seconds until the next look, and a line for the log. Refuses where they never will be. `looks` counts from 0."""

def executor_cores(*, conf: dict[str, str]) -> int:
    """How many cores an executor has; 0 where it has all of whatever host it is on."""

def look_before_restart(tasks: int, there: int | None, waited: float, timeout: float) -> _Wait:
    """The same before a stage is submitted again, which it is at the time-out in any case."""

def lease_gpus(
    ranks: int,
    *,
    use_gpu: bool,
    local_mode: bool,
    master: str,
    addresses: list[str] | None,
    visible: str | None,
) -> tuple[int, list[str]]:
    """Takes a GPU of the driver's, at its addresses, for each rank there: a number to release them by, and the GPUs."""

def release_gpus(lease: int) -> None:
    """Gives the GPUs of a lease back; again is harmless."""

def explain_stage(class_: str, text: str, /) -> tuple[str, str]:
    """Why a stage ended, from an exception's class and text: cancelled or start, and a sentence."""
