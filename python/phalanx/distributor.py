"""`TorchDistributor`: the same class as pyspark's, on the outside.

It checks the call, packs what is to run, leases GPUs, and hands over to a `Run`, which does the work.

RUN-1 (drop-in): signatures, messages and log lines are those of `pyspark.ml.torch.distributor.TorchDistributor` 4.3.
RUN-2 (refused-first): what can be known to be wrong raises before anything is started.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .connect import relay
from .connect.client import gang_settings, is_remote
from .display.shown import Shown
from .display.spark_ui import SparkUi
from .feeding.given import check_data, check_gang, is_data, is_table
from .feeding.partitions.partitions import numbers_of
from .feeding.partitions.partitions import partition_data_loader as _get_spark_partition_data_loader
from .feeding.preparation import Preparation
from .feeding.stream.input import check_restarts, for_tasks
from .integrations.mlflow import callers_run
from .options import Options
from .plumbing.describe import describe_type
from .rank import contract
from .request import preflight
from .request.inherited import (
    Distributor,
    _get_conf,
    _get_conf_boolean,
    _get_gpus_owned,
    _get_logger,
    _get_resources,
)
from .request.payload import FileArgument, Payload, file_payload, function_payload, module_payload
from .request.run_owner import check_given, owner_settings
from .request.run_profile import run_profile
from .request.run_request import RunRequest, TaskRows
from .request.settings import Settings
from .request.train_object import Module, name_of
from .spark.session import SessionConf, active_session, check_running, driver_dir, hub_endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .run.observer import Observer
    from .run.run import Run

_Own = TypeVar("_Own", bound="TorchDistributor")
TrainObject = Callable[..., Any] | str | os.PathLike[str] | Module

__all__ = [
    "Distributor",
    "TorchDistributor",
    "_get_conf",
    "_get_conf_boolean",
    "_get_gpus_owned",
    "_get_logger",
    "_get_resources",
    "_get_spark_partition_data_loader",
]


class _Default(int):
    """An int that can be told from the same int given by the caller."""


_ONE = _Default(1)


class TorchDistributor(Distributor):
    """Runs PyTorch training as ranks, on the driver or in a Spark stage.

    num_processes   the number of ranks (`num_workers` is a deprecated alias); two numbers are the fewest with which a
                    run goes on, and the most: `(2, 8)`
    local_mode      whether the ranks run on the driver's host; otherwise they run in tasks of the cluster
    use_gpu         whether each rank has a GPU of its own

    The other keywords are those of `Options`, which says what each does.

    `last_run` is the `Run` that was started last. It has the run's phases and every rank's result.

    >>> distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    >>> model = distributor.run(train, 1e-3)

    It belongs to the session that is active when it is made. It raises `ValueError` and `TypeError` for bad arguments.
    It raises `RuntimeError` if there is no active SparkSession, or if GPUs are wanted that Spark doesn't know of.
    """

    def __init__(
        self,
        num_processes: int | tuple[int, int] = _ONE,
        local_mode: bool = True,
        use_gpu: bool = True,
        _ssl_conf: str = preflight.SSL_OVERRIDE,
        *,
        num_workers: int | None = None,
        warm: bool | None = None,
        max_restarts: int | None = None,
        restart_on: Iterable[str] | None = None,
        max_preemptions: int | None = None,
        hang_timeout: float | None = None,
        grace: float | None = None,
        cpus_per_rank: int | None = None,
        task_cpus: int | None = None,
        gpus_per_rank: int | None = None,
        memory_per_rank: str | int | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_name: str | None = None,
        env: Mapping[str, str] | None = None,
        mlflow: bool | Literal["all"] | None = None,
        local_ranks: str | None = None,
        gang: str | None = None,
        min_processes: int | None = None,
        logs: str | int | Iterable[int] | None = None,
        progress: str | None = None,
    ) -> None:
        if num_workers is not None:
            if num_processes is not _ONE:
                raise TypeError("num_workers is an alias of num_processes; give one of them")
            warnings.warn("num_workers is deprecated; use num_processes", DeprecationWarning, stacklevel=2)
            num_processes = num_workers
        self.num_processes, least = preflight.check_sizes(num_processes)
        min_processes = min_processes if least is None else least
        self.local_mode = local_mode
        self.use_gpu = use_gpu
        self.ssl_conf = _ssl_conf
        self.options = Options(
            warm=warm,
            max_restarts=max_restarts,
            restart_on=restart_on,
            max_preemptions=max_preemptions,
            hang_timeout=hang_timeout,
            grace=grace,
            cpus_per_rank=cpus_per_rank,
            task_cpus=task_cpus,
            gpus_per_rank=gpus_per_rank,
            memory_per_rank=memory_per_rank,
            checkpoint_dir=checkpoint_dir,
            checkpoint_name=checkpoint_name,
            env=env,
            mlflow=mlflow,
            local_ranks=local_ranks,
            gang=gang,
            min_processes=min_processes,
            logs=logs,
            progress=progress,
        )
        """What a run is told beside its ranks; `with_options` makes a distributor with others."""
        self._sets: dict[str, Any] = {}
        self.logger = _get_logger(type(self).__name__)
        self._look_at(active_session())
        self.last_run: Run | None = None
        self.num_tasks = self._get_num_tasks()
        self._validate_input_params()
        self.input_params = self._create_input_params()
        """What pyspark's class has under this name; a change of it changes nothing."""

    def with_options(self: _Own, options: Options | None = None, /, **changes: Any) -> _Own:
        """A copy with other options: those that `options` says, and over them `changes`, where None is what the
        settings say. Variables of `env` are added to those that there are. The copy has no `last_run`.

        >>> distributor.with_options(max_restarts=2, env={"SEED": "1"}).run(train)

        Raises `TypeError` for what is no option.
        """
        own = self._copy()
        own.options = self.options.with_changes(options, **changes)
        if own.options.gpus_per_rank != self.options.gpus_per_rank:
            own._plan_tasks()
        return own

    def with_data(self: _Own, data: Mapping[str, Any] | None = None, /, **sets: Any) -> _Own:
        """A copy whose runs have these data sets, by name, besides those that there are: ranks take them by
        `phalanx.data(name)`. Each is a DataFrame of Spark, as it is or `streamed`, `replicated` or `stored`. The copy
        has no `last_run`.

        >>> distributor.with_data(train=train_df, test=phalanx.replicated(test_df)).run(train)

        Raises `TypeError` for what is no data of Spark's, `ValueError` for a name that is given twice.
        """
        own = self._copy()
        own._sets = _joined(self._sets, _joined({} if data is None else data, sets))
        return own

    def run(self, train_object: TrainObject, *args: Any, **kwargs: Any) -> Any:
        """Trains, and returns what rank 0 returned.

        `train_object` is a function, called with `args` and `kwargs` in every rank, or the path of a Python
        file, run with `args` as its command line; one that isn't here, but on the executors, is taken from
        there. A file's result is what it gave to `phalanx.set_result`, else None. Blocks until the training is
        over, and shows the ranks' output meanwhile; an interrupt cancels it.

        A keyword argument `data={name: DataFrame}` is not passed on: the ranks have the rows by `phalanx.data(name)`,
        as those of `with_data`.

        Raises `TrainingError` (a `RuntimeError`) where the training fails, with the cause; `UnpicklableError`
        (a `TypeError`) where the function can't be sent; before anything is started what `preflight` finds.
        """
        return self._drive(*self._request(train_object, args, kwargs))

    def start(self, train_object: TrainObject, *args: Any, **kwargs: Any) -> Run:
        """As `run`, but returns at once: the `Run` that was started has `result()`, `results()`, `cancel()`, `status`,
        `stacks()`, `logs(rank)` and `done`."""
        request, inputs, tracked = self._request(train_object, args, kwargs)
        lease = self._lease()
        try:
            run = self.last_run = self._run(request, lease, inputs, tracked)
            return run.start()
        except BaseException:
            lease.release()
            request.forget()
            raise

    def _train_on_dataframe(
        self, train_function: Callable[..., Any], spark_dataframe: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """As `run`, in the tasks that compute the DataFrame's partitions, one for each.

        Inside the function `_get_spark_partition_data_loader` gives the rank its partition. A DataFrame that is known
        to have another number of partitions than the run has tasks is repartitioned. None may be empty.

        Raises `ValueError` in local mode, and for a column that is no number, array of numbers or vector.
        """
        if self.local_mode:
            raise ValueError(
                "TorchDistributor.train_on_dataframe requires setting TorchDistributor.local_mode to False."
            )
        self._check_session()
        check_running(spark_dataframe.sparkSession, "the DataFrame")
        self._plan_tasks()
        frame = numbers_of(spark_dataframe)
        count = preflight.partition_count(frame)
        if count not in (None, self.num_tasks):
            self.logger.info(
                f"Spark repartitions the DataFrame: it has {count} partitions and the run has {self.num_tasks} tasks"
            )
            frame = frame.repartition(self.num_tasks)
        rows = TaskRows(frame, None)
        return self._drive(*self._request(train_function, args, kwargs, rows))

    def _get_num_tasks(self) -> int:
        """Over how many tasks of Spark's the ranks are spread, in local mode their number; fewer GPUs of the driver
        lower `num_processes`."""
        self.num_processes, tasks = preflight.plan(
            self.num_processes,
            local_mode=self.local_mode,
            use_gpu=self.use_gpu,
            conf_get=lambda key: self.options.settings.get(key) or self.spark.conf.get(key, None),
            resources=lambda: preflight.resources_of(self.spark),
            logger=self.logger,
        )
        return self.num_processes if self.local_mode else tasks

    def _plan_tasks(self) -> None:
        """How many GPUs a rank has may have changed since the last time."""
        if self.use_gpu and not self.local_mode:
            self.num_tasks = self._get_num_tasks()

    def _drive(self, request: RunRequest, inputs: Preparation | None, tracked: Sequence[Observer]) -> Any:
        lease = self._lease()
        try:
            run = self.last_run = self._run(request, lease, inputs, tracked)
            result = run.drive()
        finally:
            lease.release()
            request.forget()
        self.logger.info(f"Finished {self._where()}")
        return result

    def _run(
        self,
        request: RunRequest,
        lease: preflight.Lease,
        inputs: Preparation | None,
        tracked: Sequence[Observer],
    ) -> Run:
        run = _new_run(
            spark=self.spark,
            local_mode=self.local_mode,
            request=request,
            lease=lease,
            inputs=inputs,
            tracked=tracked,
        )
        self.logger.info(f"Started {self._where()}")
        return run

    def _request(
        self, train_object: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: TaskRows | None = None
    ) -> tuple[RunRequest, Preparation | None, Sequence[Observer]]:
        """Everything that a `Run` needs but GPUs; all checks are done."""
        from . import _native

        sets, kwargs = self._data_of(kwargs)
        if not self.local_mode or self.use_gpu or self.is_remote or sets:
            self._check_session()
        self._plan_tasks()
        elsewhere = not self.local_mode and preflight.is_elsewhere(train_object)
        preflight.check_train_object(train_object, kwargs, elsewhere=elsewhere)
        may_relay = is_remote(self.spark) and not self.local_mode and relay.has_plugin(self.spark)
        defaults = relay.DEFAULTS if may_relay else None
        session = SessionConf(self.spark)

        def conf(key: str) -> str | None:
            return session.get(self.ssl_conf if key == preflight.SSL_OVERRIDE else key)

        given, env = self.options.settings, dict(self.options.env or {})
        settings = Settings.read(conf, keys=session.keys, given=given, defaults=defaults)
        if settings.connect == "relay" and is_remote(self.spark) and not self.local_mode and not may_relay:
            raise RuntimeError(relay.NO_PLUGIN)
        if not self.local_mode:
            check_gang(settings.gang, sets, has_rows=rows is not None)
        inputs = self._inputs(sets, settings)
        if inputs is not None and inputs.streamed is not None:
            if rows is not None:
                raise ValueError(
                    f"the data set {inputs.streamed.name!r} can't be streamed to _train_on_dataframe, whose "
                    "tasks already read its DataFrame; give both to run(data=...)"
                )
            check_restarts(inputs.streamed.name, settings.max_restarts)
            rows = TaskRows(for_tasks(*inputs.streamed, self.num_tasks), inputs.streamed.name)
        variables = _native.rank_variables(settings.values, env)
        context, tracked = callers_run(self.options.mlflow, local_mode=self.local_mode, given=env)
        payload = self._packed(train_object, args, kwargs, elsewhere=elsewhere)
        of_data = {} if inputs is None else inputs.settings
        if not self.local_mode:
            preflight.check_start(conf, self.logger, given={**given, **of_data})
        profile = run_profile(
            self.spark,
            settings.values,
            use_gpu=self.use_gpu,
            local_mode=self.local_mode,
            of_dataframe=rows is not None or is_remote(self.spark),
        )
        job = _native.Job(
            name=name_of(train_object),
            ranks=self.num_processes,
            tasks=1 if self.local_mode else self.num_tasks,
            use_gpu=self.use_gpu,
            settings=settings.values
            | owner_settings(train_object, self.spark)
            | {"phalanx.localMode": str(self.local_mode).lower()}
            | gang_settings(self.spark)
            | of_data
            | ({} if tracked is None else tracked.settings),
        )
        if rows is not None and job.least_tasks < job.tasks:
            raise ValueError(
                "each task of this run reads its own rows of the DataFrame, so num_processes has to be one number; "
                "give the data as phalanx.stored, or without phalanx.streamed"
            )
        if not self.local_mode:
            preflight.check_slots(self.spark, job.least_tasks, settings.slots_timeout, self.logger, profile)
        named = conf(f"spark.executorEnv.{contract.ENV_CHECKPOINT_NAME}") is not None
        check_given(job, given, {*variables, *([contract.ENV_CHECKPOINT_NAME] if named else [])})
        # Through a Spark Connect server alone, nobody else has to reach the hub.
        is_near = self.local_mode or (is_remote(self.spark) and settings.connect == "relay")
        request = RunRequest(
            job=job,
            payload=Payload(payload),
            settings=settings,
            variables={**context, **variables},
            endpoint=("127.0.0.1", "127.0.0.1") if is_near else hub_endpoint(self.spark, conf),
            work_dir=driver_dir(self.spark),
            rows=rows,
            profile=profile,
        )
        return request, inputs, [] if tracked is None else [tracked]

    def _data_of(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The data sets of a run, by name, and the keyword arguments of the function."""
        if is_data(kwargs.get("data")):
            kwargs = dict(kwargs)
            return _joined(self._sets, kwargs.pop("data")), kwargs
        if is_table(kwargs.get("data")):
            _warn_of_data(kwargs["data"])
        return self._sets, kwargs

    def _inputs(self, sets: dict[str, Any], settings: Settings) -> Preparation | None:
        if not sets:
            return None
        restarts = settings.max_restarts > 0 or settings.max_preemptions != 0
        order = settings.data_order
        return Preparation(self.spark, sets, local_mode=self.local_mode, order=order, restarts=restarts)

    def _packed(
        self, train_object: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, elsewhere: bool
    ) -> bytes:
        options = self._options()
        if callable(train_object):
            return function_payload(train_object, args, kwargs, sys_path=sys.path, argv=options)
        if isinstance(train_object, Module):
            return module_payload(train_object.name, [*args, *options])
        if elsewhere:
            self.logger.info(f"{train_object} is not here; the ranks take what is there on their hosts")
        return file_payload(train_object, [*args, *options], sys_path=sys.path, elsewhere=elsewhere)

    def _copy(self: _Own) -> _Own:
        own = copy.copy(self)
        own.last_run = None
        own.input_params = dict(self.input_params)
        return own

    def _check_session(self) -> None:
        """Ranks on the driver's host alone need nothing of the session, which may have been stopped."""
        check_running(self.spark, f"this {type(self).__name__}")

    def _options(self) -> list[str | FileArgument]:
        """What ranks have at the end of their command line, beside the caller's arguments."""
        return []

    def _lease(self) -> preflight.Lease:
        """The driver's GPUs for a run: in local mode, and on a local master, whose tasks get none."""
        return preflight.Lease(
            self.spark, self.num_processes, use_gpu=self.use_gpu, local_mode=self.local_mode
        )

    def _where(self) -> str:
        if self.local_mode:
            return f"local training with {self.num_processes} processes"
        return f"distributed training with {self.num_processes} executor processes"


def _new_run(
    *,
    spark: SparkSession,
    local_mode: bool,
    request: RunRequest,
    lease: preflight.Lease,
    inputs: Preparation | None,
    tracked: Sequence[Observer],
) -> Run:
    """Puts a run together: its stage, and who observes it."""
    from .run.run import Run
    from .stages.choice import local_stage, spark_stage

    shown = Shown(request.job.name, request.settings.progress)
    stage = local_stage if local_mode else spark_stage
    return Run(
        request,
        stage=stage(spark, request, gpus=lease.gpus),
        lease=lease,
        inputs=inputs,
        observers=[SparkUi(spark), shown, *tracked],
        face=shown,
    )


def _joined(sets: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Data sets by name, of two mappings. Raises as `with_data`."""
    for given in (sets, more):
        check_data(given)
    for name in sets.keys() & more.keys():
        raise ValueError(f"the data set {name!r} is given twice")
    return {**sets, **more}


_warned_of_data = False


def _warn_of_data(data: object) -> None:
    """Says once that an argument `data` is the function's: somebody may have meant a data set of the run."""
    global _warned_of_data
    if not _warned_of_data:
        _warned_of_data = True
        warnings.warn(
            f"run(data=...) is passed to the function as an argument, because it is {describe_type(data)} "
            "and not a Spark DataFrame; to share a data set among the ranks, give a Spark DataFrame: "
            "with_data(train=df)",
            UserWarning,
            stacklevel=5,
        )
