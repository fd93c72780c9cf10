"""`TorchDistributor`: the same class as pyspark's, on the outside.

It checks the call, packs what is to run, leases GPUs, and hands over to a `Run`, which does the work.

RUN-1 (drop-in): signatures, messages and log lines are those of `pyspark.ml.torch.distributor.TorchDistributor` 4.3.
RUN-2 (refused-first): what can be known to be wrong raises before anything is started.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .connect import relay
from .connect.client import is_remote
from .display.spark_ui import SparkUi
from .feeding.given import is_data
from .feeding.partitions.partitions import numbers_of
from .feeding.partitions.partitions import partition_data_loader as _get_spark_partition_data_loader
from .feeding.preparation import Preparation
from .feeding.stream.input import check_restarts, for_tasks
from .integrations.mlflow import callers_run
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
from .request.payload import FileArgument, file_payload, function_payload, module_payload
from .request.run_owner import check_given, owner_settings
from .request.settings import Settings, given
from .request.train_object import Module, name_of
from .spark.session import SessionConf, active_session, driver_dir, hub_endpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from . import _native
    from .integrations.mlflow import TrackedRun
    from .run.run import Run

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

    num_processes   the number of ranks (`num_workers` is a deprecated alias)
    local_mode      whether the ranks run on the driver's host; otherwise they run in tasks of the cluster
    use_gpu         whether each rank has a GPU of its own
    warm            whether ranks are forked from a process that has imported torch already; by default what
                    `spark.phalanx.warm.enabled` says

    max_restarts    how often in a run all ranks start again after a failure; by default what
                    `spark.phalanx.maxRestarts` says, which is 0
    restart_on      the kinds of failure (`TrainingError.kind`) after which the ranks start again; by default what
                    `spark.phalanx.restartOn` says, which is lost_node, signal and hang

    hang_timeout    the run fails, with the stacks of all ranks, when no rank makes progress for this many seconds; by
                    default what `spark.phalanx.hangTimeout` says, which is never

    grace           the seconds that ranks have between SIGTERM and SIGKILL when a run is ended; by default what
                    `spark.phalanx.grace` says, which is 30

    cpus_per_rank   with how many cores a rank computes, unless the user's environment has `OMP_NUM_THREADS`; by default
                    what `spark.phalanx.cpusPerRank` says, or else its share of its task's cores, in local mode of
                    the driver's host

    checkpoint_dir  a folder that all hosts share, or a URI that fsspec opens: where the run's checkpoints are; by
                    default what `spark.phalanx.checkpoint.directory` says, or else `PHALANX_CHECKPOINT_DIR`
    checkpoint_name what tells the run's checkpoints there from those of other runs; all runs of this name share them.
                    By default the name of the function or file that is run, whose checkpoints are then its owner's: a
                    run of another function or user is refused. Runs at the same time need different names

    env             variables for the ranks' environment, besides those that `spark.phalanx.env.pass` names; the values
                    are in no setting, argument or log
    mlflow          None: ranks continue the caller's active MLflow run, if there is one, and only rank 0 logs to it.
                    True: the values of `phalanx.report` are its metrics, too. "all": all ranks do both. False: nothing
    local_ranks     what counts as a node for `LOCAL_RANK`, `GROUP_RANK` and `CUDA_VISIBLE_DEVICES`: "task" for a Spark
                    task, "host" for all tasks on a host; by default what `spark.phalanx.localRanks` says, which is task

    logs            which of the ranks' output is shown: "all", "dedup" (equal lines once, with their ranks), "errors"
                    (the newest lines of a rank that failed), "off", a rank, or a list of ranks; by default what
                    `spark.phalanx.logs` says, which is all of up to 8 ranks, and of more dedup
    progress        how `run` shows the run while it blocks: "auto", "rich" (in a notebook's cell), "plain" (a line on
                    stderr) or "off"; by default what `spark.phalanx.progress` says, which is auto

    `last_run` is the `Run` that was started last. It has the run's phases and every rank's result.

    >>> distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    >>> model = distributor.run(train, 1e-3)

    It raises `ValueError` and `TypeError` for bad arguments. It raises `RuntimeError` if there is no active
    SparkSession, or if GPUs are wanted that Spark doesn't know of.
    """

    def __init__(
        self,
        num_processes: int = _ONE,
        local_mode: bool = True,
        use_gpu: bool = True,
        _ssl_conf: str = preflight.SSL_OVERRIDE,
        *,
        num_workers: int | None = None,
        warm: bool | None = None,
        max_restarts: int | None = None,
        restart_on: Iterable[str] | None = None,
        hang_timeout: float | None = None,
        grace: float | None = None,
        cpus_per_rank: int | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_name: str | None = None,
        env: Mapping[str, str] | None = None,
        mlflow: bool | Literal["all"] | None = None,
        local_ranks: str | None = None,
        logs: str | int | Iterable[int] | None = None,
        progress: str | None = None,
    ) -> None:
        if num_workers is not None:
            if num_processes is not _ONE:
                raise TypeError("num_workers is an alias of num_processes; give one of them")
            warnings.warn("num_workers is deprecated; use num_processes", DeprecationWarning, stacklevel=2)
            num_processes = num_workers
        self.num_processes = preflight.check_num_processes(num_processes)
        self.local_mode = local_mode
        self.use_gpu = use_gpu
        self.ssl_conf = _ssl_conf
        self._given = given(
            warm=warm,
            max_restarts=max_restarts,
            restart_on=restart_on,
            hang_timeout=hang_timeout,
            grace=grace,
            cpus_per_rank=cpus_per_rank,
            checkpoint_dir=checkpoint_dir,
            checkpoint_name=checkpoint_name,
            local_ranks=local_ranks,
            logs=logs,
            progress=progress,
        )
        self._env = preflight.check_env(env)
        self._mlflow = mlflow
        self.logger = _get_logger(type(self).__name__)
        self._look_at(active_session())
        self.last_run: Run | None = None
        self.num_tasks = self._get_num_tasks()
        self._validate_input_params()
        self.input_params = self._create_input_params()
        """What pyspark's class has under this name; a change of it changes nothing."""

    def run(self, train_object: TrainObject, *args: Any, **kwargs: Any) -> Any:
        """Trains, and returns what rank 0 returned.

        `train_object` is a function, called with `args` and `kwargs` in every rank, or the path of a Python
        file, run with `args` as its command line; one that isn't here, but on the executors, is taken from
        there. A file's result is what it gave to `phalanx.set_result`, else None. Blocks until the training is
        over, and shows the ranks' output meanwhile; an interrupt cancels it.

        A keyword argument `data={name: DataFrame}` is not passed on: the ranks have the rows by `phalanx.data(name)`.

        Raises `TrainingError` (a `RuntimeError`) where the training fails, with the cause; `UnpicklableError`
        (a `TypeError`) where the function can't be sent; before anything is started what `preflight` finds.
        """
        return self._drive(self._job(train_object, args, kwargs))

    def start(self, train_object: TrainObject, *args: Any, **kwargs: Any) -> Run:
        """As `run`, but returns at once: the `Run` that was started has `result()`, `results()`, `cancel()`, `status`,
        `stacks()`, `logs(rank)` and `done`."""
        job = self._job(train_object, args, kwargs)
        lease = self._lease()
        try:
            run = self.last_run = _new_run(**job, lease=lease)
            job.clear()  # what a failure's traceback holds is kept with it
            self.logger.info(f"Started {self._where()}")
            return run.start()
        except BaseException:
            lease.release()
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
        frame = numbers_of(spark_dataframe)
        count = preflight.partition_count(frame)
        if count not in (None, self.num_tasks):
            self.logger.info(
                f"Spark repartitions the DataFrame: it has {count} partitions and the run has {self.num_tasks} tasks"
            )
            frame = frame.repartition(self.num_tasks)
        return self._drive(self._job(train_function, args, kwargs, dataframe=frame))

    def _get_num_tasks(self) -> int:
        """Over how many tasks of Spark's the ranks are spread, in local mode their number; fewer GPUs of the driver
        lower `num_processes`."""
        self.num_processes, tasks = preflight.plan(
            self.num_processes,
            local_mode=self.local_mode,
            use_gpu=self.use_gpu,
            conf_get=lambda key: self.spark.conf.get(key, None),
            resources=lambda: preflight.resources_of(self.spark),
            logger=self.logger,
        )
        return self.num_processes if self.local_mode else tasks

    def _drive(self, job: dict[str, Any]) -> Any:
        lease = self._lease()
        try:
            run = self.last_run = _new_run(**job, lease=lease)
            job.clear()  # what a failure's traceback holds is kept with it
            self.logger.info(f"Started {self._where()}")
            result = run.drive()
        finally:
            lease.release()
        self.logger.info(f"Finished {self._where()}")
        return result

    def _job(
        self, train_object: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dataframe: Any = None
    ) -> dict[str, Any]:
        """Everything that a `Run` needs but GPUs; all checks are done."""
        from . import _native

        frames = None
        if is_data(kwargs.get("data")):
            kwargs = dict(kwargs)
            frames = kwargs.pop("data")
        elsewhere = not self.local_mode and preflight.is_elsewhere(train_object)
        preflight.check_train_object(train_object, kwargs, elsewhere=elsewhere)
        may_relay = is_remote(self.spark) and not self.local_mode and relay.has_plugin(self.spark)
        defaults = relay.DEFAULTS if may_relay else None
        session = SessionConf(self.spark)

        def conf(key: str) -> str | None:
            return session.get(self.ssl_conf if key == preflight.SSL_OVERRIDE else key)

        settings = Settings.read(conf, keys=session.keys, given=self._given, defaults=defaults)
        if settings.connect == "relay" and is_remote(self.spark) and not self.local_mode and not may_relay:
            raise RuntimeError(relay.NO_PLUGIN)
        data = None
        if frames is not None:
            data = Preparation(
                self.spark,
                frames,
                local_mode=self.local_mode,
                order=settings.data_order,
                restarts=settings.max_restarts > 0,
            )
        if data is not None and data.streamed is not None:
            if dataframe is not None:
                raise ValueError(
                    f"the data set {data.streamed.name!r} is streamed, and the tasks of _train_on_dataframe "
                    "have its DataFrame as their input, and no other; use run(data=...) for both"
                )
            check_restarts(data.streamed.name, settings.max_restarts)
            dataframe = for_tasks(*data.streamed, self.num_tasks)
        variables = _native.rank_variables(settings.values, self._env)
        context, tracked = callers_run(self._mlflow, local_mode=self.local_mode, given=self._env)
        options = self._options()
        if callable(train_object):
            payload = function_payload(train_object, args, kwargs, sys_path=sys.path, argv=options)
        elif isinstance(train_object, Module):
            payload = module_payload(train_object.name, [*args, *options])
        else:
            if elsewhere:
                self.logger.info(f"{train_object} is not here; the ranks take what is there on their hosts")
            payload = file_payload(train_object, [*args, *options], sys_path=sys.path, elsewhere=elsewhere)
        if not self.local_mode:
            preflight.check_start(conf, self.logger, given=self._given)
            preflight.check_slots(self.spark, self.num_tasks, settings.slots_timeout, self.logger)
        job = _native.Job(
            name=name_of(train_object),
            ranks=self.num_processes,
            tasks=1 if self.local_mode else self.num_tasks,
            use_gpu=self.use_gpu,
            settings=settings.values
            | owner_settings(train_object, self.spark)
            | {"phalanx.localMode": str(self.local_mode).lower()}
            | ({} if data is None or not data.folder else {"phalanx.dataFolder": data.folder}),
        )
        named = conf(f"spark.executorEnv.{contract.ENV_CHECKPOINT_NAME}") is not None
        check_given(job, self._given, {*variables, *([contract.ENV_CHECKPOINT_NAME] if named else [])})
        return {
            "spark": self.spark,
            "conf": conf,
            "local_mode": self.local_mode,
            "job": job,
            "payload": payload,
            "settings": settings,
            "variables": {**context, **variables},
            "tracked": tracked,
            "dataframe": dataframe,
            "data": data,
        }

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
    conf: preflight.ConfGet,
    local_mode: bool,
    job: _native.Job,
    payload: bytes,
    settings: Settings,
    variables: dict[str, str],
    tracked: TrackedRun | None,
    dataframe: DataFrame | None,
    data: Preparation | None,
    lease: preflight.Lease,
) -> Run:
    from .run.run import Run
    from .stages.choice import local_stage, spark_stage

    # Through a Spark Connect server alone, nobody else has to reach the hub.
    is_near = local_mode or (is_remote(spark) and settings.connect == "relay")
    endpoint = ("127.0.0.1", "127.0.0.1") if is_near else hub_endpoint(spark, conf)
    if local_mode:
        stage = local_stage(spark, payload=payload, gpus=lease.gpus, variables=variables)
    else:
        stage = spark_stage(
            spark,
            job=job,
            payload=payload,
            settings=settings,
            gpus=lease.gpus,
            variables=variables,
            hub_host=endpoint[0],
            dataframe=dataframe,
            stream=None if data is None or data.streamed is None else data.streamed.name,
        )
    return Run(
        job=job,
        payload=payload,
        stage=stage,
        endpoint=endpoint,
        work_dir=driver_dir(spark),
        lease=lease,
        settings=settings,
        ui=functools.partial(SparkUi, spark),
        tracked=tracked,
        data=data,
    )
