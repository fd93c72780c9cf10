"""`Options`: what a run may be told beside its ranks, as one value.

RUN-16 (one-table): `_SETTINGS` is the one table from an option to the setting that it stands for. The constructor of
`TorchDistributor`, `run_local`, the documents and Scala's `with...` are compared with it.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal


def _texts(values: str | int | Iterable[Any]) -> str:
    return str(values) if isinstance(values, str | int) else ",".join(map(str, values))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms"


# By option: the setting, and how its value is written there.
_SETTINGS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "warm": ("spark.phalanx.warm.enabled", lambda value: str(bool(value)).lower()),
    "max_restarts": ("spark.phalanx.maxRestarts", str),
    "restart_on": ("spark.phalanx.restartOn", _texts),
    "max_preemptions": ("spark.phalanx.maxPreemptions", str),
    "hang_timeout": ("spark.phalanx.hangTimeout", _milliseconds),
    "grace": ("spark.phalanx.grace", _milliseconds),
    "cpus_per_rank": ("spark.phalanx.cpusPerRank", str),
    "task_cpus": ("spark.phalanx.taskCpus", str),
    "gpus_per_rank": ("spark.phalanx.gpusPerRank", str),
    "memory_per_rank": ("spark.phalanx.memoryPerRank", str),
    "checkpoint_dir": ("spark.phalanx.checkpoint.directory", os.fspath),
    "checkpoint_name": ("spark.phalanx.checkpoint.name", str),
    "local_ranks": ("spark.phalanx.localRanks", str),
    "gang": ("spark.phalanx.gang", str),
    "min_processes": ("spark.phalanx.elastic.minProcesses", str),
    "logs": ("spark.phalanx.logs", _texts),
    "progress": ("spark.phalanx.progress", str),
}


def _checked(env: object) -> dict[str, str]:
    """Variables for ranks. Raises `TypeError` where they are no mapping of str to str; it shows no value."""
    if not isinstance(env, Mapping):
        raise TypeError(f"env has to be a mapping of names to values, not {type(env).__name__}")
    for name, value in env.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            shown = f"{name!r} is a {type(value).__name__}"
            raise TypeError(f"the names and values of env have to be str; the value of {shown}")
    return dict(env)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Options:
    """The options of a run, all of which may be left out: None is what the settings say.

    warm            whether ranks are forked from a process that has imported torch already; else what
                    `spark.phalanx.warm.enabled` says

    max_restarts    how often in a run all ranks start again after a failure; else what `spark.phalanx.maxRestarts`
                    says, which is 0
    restart_on      the kinds of failure (`TrainingError.kind`) after which the ranks start again; else what
                    `spark.phalanx.restartOn` says, which is lost_node, signal and hang

    max_preemptions how often in a run all ranks start again because a host was announced to go, which is no restart
                    (`phalanx.preempted`); else what `spark.phalanx.maxPreemptions` says, which is as often as that
                    happens

    hang_timeout    the run fails, with the stacks of all ranks, when no rank makes progress for this many seconds;
                    else what `spark.phalanx.hangTimeout` says, which is never

    grace           the seconds that ranks have between SIGTERM and SIGKILL when a run is ended; else what
                    `spark.phalanx.grace` says, which is 30

    cpus_per_rank   with how many cores a rank computes, unless the user's environment has `OMP_NUM_THREADS`; else what
                    `spark.phalanx.cpusPerRank` says, or its share of its task's cores, in local mode of the driver's
                    host

    task_cpus       how many cores each of the run's tasks takes; else what `spark.phalanx.taskCpus` says, or
                    `spark.task.cpus`
    gpus_per_rank   how many whole GPUs each rank has, which is then a task of its own; else what
                    `spark.phalanx.gpusPerRank` says, or `spark.task.resource.gpu.amount`
    memory_per_rank how much memory each rank has beside the executor's own, such as "4g", on YARN and Kubernetes with
                    dynamic allocation; else what `spark.phalanx.memoryPerRank` says, or what
                    `spark.executor.memoryOverhead` has for all

    checkpoint_dir  a folder that all hosts share, or a URI that fsspec opens: where the run's checkpoints are; else
                    what `spark.phalanx.checkpoint.directory` says, or `PHALANX_CHECKPOINT_DIR`
    checkpoint_name what tells the run's checkpoints there from those of other runs; all runs of this name share them.
                    Else what `spark.phalanx.checkpoint.name` says, or the name of the function or file that is run,
                    whose checkpoints are then its owner's: a run of another function or user is refused. Runs at the
                    same time need different names

    env             variables for the ranks' environment, besides those that `spark.phalanx.env.pass` names; the values
                    are in no setting, argument or log
    mlflow          None: ranks continue the caller's active MLflow run, if there is one, and only rank 0 logs to it.
                    True: each `phalanx.report` of rank 0 is its metrics, too. "all": all ranks do both. False: nothing
    local_ranks     what counts as a node for `LOCAL_RANK`, `GROUP_RANK` and `CUDA_VISIBLE_DEVICES`: "task" for a Spark
                    task, "host" for all tasks on a host; else what `spark.phalanx.localRanks` says, which is task

    gang            what the run's tasks are to Spark: "barrier", a stage that starts as a whole, or "tasks", a job
                    each, for which dynamic allocation starts executors; else what `spark.phalanx.gang` says, which is
                    tasks where dynamic allocation is on, and else barrier

    min_processes   the fewest ranks with which a run goes on, which has `num_processes` at most; `num_processes=(2, 8)`
                    says both. Else what `spark.phalanx.elastic.minProcesses` says, which is all of them

    logs            which of the ranks' output is shown: "all", "dedup" (equal lines once, with their ranks), "errors"
                    (the newest lines of a rank that failed), "off", a rank, or a list of ranks; else what
                    `spark.phalanx.logs` says, which is all of up to 8 ranks, and of more dedup
    progress        how `run` shows the run while it blocks: "auto", "rich" (in a notebook's cell), "plain" (a line on
                    stderr) or "off"; else what `spark.phalanx.progress` says, which is auto

    >>> careful = phalanx.Options(max_restarts=2, hang_timeout=600)
    >>> model = distributor.with_options(careful, logs="errors").run(train)

    Raises `TypeError` for an `env` that is no mapping of texts to texts. Other values are checked when a run starts.
    """

    warm: bool | None = None
    max_restarts: int | None = None
    restart_on: str | Iterable[str] | None = None
    max_preemptions: int | None = None
    hang_timeout: float | None = None
    grace: float | None = None
    cpus_per_rank: int | None = None
    task_cpus: int | None = None
    gpus_per_rank: int | None = None
    memory_per_rank: str | int | None = None
    checkpoint_dir: str | os.PathLike[str] | None = None
    checkpoint_name: str | None = None
    env: Mapping[str, str] | None = dataclasses.field(default=None, hash=False)
    mlflow: bool | Literal["all"] | None = None
    local_ranks: str | None = None
    gang: str | None = None
    min_processes: int | None = None
    logs: str | int | Iterable[int] | None = None
    progress: str | None = None

    def __post_init__(self) -> None:
        # What is given may be changed or used up later; this is a value.
        for name in ("restart_on", "logs"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | int):
                object.__setattr__(self, name, tuple(value))
        if self.env is not None:
            object.__setattr__(self, "env", _checked(self.env))

    def with_changes(self, options: Options | None = None, /, **changes: Any) -> Options:
        """These options with those that `options` says, and over them `changes`, where None is what the settings say.
        Variables of `env` are added to those that there are.

        Raises `TypeError` for a change that is no option.
        """
        if options is not None and not isinstance(options, Options):
            raise TypeError(f"options have to be phalanx.Options, not {type(options).__name__}")
        for name in changes.keys() - _NAMES:
            near = difflib.get_close_matches(name, _NAMES, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; the options are {', '.join(sorted(_NAMES))}"
            raise TypeError(f"{name!r} is not a run option{hint}")
        said = {} if options is None else options.said
        env = [of["env"] for of in (self.said, said, changes) if of.get("env") is not None]
        changes = said | changes
        if changes.get("env") is not None:
            changes["env"] = {name: value for variables in env for name, value in variables.items()}
        return dataclasses.replace(self, **changes)

    @property
    def said(self) -> dict[str, Any]:
        """The options that say something, by name."""
        return {name: value for name in _ORDER if (value := getattr(self, name)) is not None}

    @property
    def settings(self) -> dict[str, str]:
        """The settings that they stand for, as Spark's configuration would have them. `env` and `mlflow` are none."""
        return {
            key: write(value)
            for name, (key, write) in _SETTINGS.items()
            if (value := getattr(self, name)) is not None
        }

    def __repr__(self) -> str:
        # Values of variables may be secrets.
        shown = {name: sorted(value) if name == "env" else value for name, value in self.said.items()}
        return f"Options({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_ORDER = [field.name for field in dataclasses.fields(Options)]
_NAMES = frozenset(_ORDER)
