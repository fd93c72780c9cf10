"""`TorchDistributor`: the same class as pyspark's, on the outside.

It checks, packs what is to run, leases GPUs and hands over to a `Run`, which does the work.

DIST-1: signatures, messages and log lines are those of `pyspark.ml.torch.distributor.TorchDistributor` 4.3.
DIST-2: whatever can be known to be wrong raises before anything is started.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import checks, gpus
from .dataframe import partition_data_loader as _get_spark_partition_data_loader
from .payload import file_payload, function_payload, name_of
from .settings import Settings, given

if TYPE_CHECKING:
    from .run import Run

TrainObject = Callable[..., Any] | str | os.PathLike[str]

__all__ = ["TorchDistributor", "_get_spark_partition_data_loader"]


class _Default(int):
    """An int that can be told from the same int given by the caller."""


_ONE = _Default(1)


class TorchDistributor:
    """Runs PyTorch training as ranks, on the driver or in a Spark stage.

    num_processes   how many ranks (`num_workers` is a deprecated alias)
    local_mode      whether they run on the driver; else they run in tasks of the cluster
    use_gpu         whether each has a GPU of its own
    warm            whether ranks are forked from a process that has torch imported already; by default what
                    `spark.phalanx.warm.enabled` says

    max_restarts    how often the ranks start again after a failure, all failures together; else
                    `spark.phalanx.maxRestarts`, by default never
    restart_on      the kinds of failure (`TrainingError.kind`) after which they do; else `spark.phalanx.restartOn`, by
                    default lost_node, signal and hang

    hang_timeout    seconds without any rank's progress after which the run fails, with the stacks of all ranks; else
                    `spark.phalanx.hangTimeout`, by default never

    grace           seconds that ranks have between SIGTERM and SIGKILL when a run is ended; else `spark.phalanx.grace`,
                    by default 30

    `last_run` is the `Run` that was started last: its phases, every rank's result.

    >>> distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    >>> model = distributor.run(train, 1e-3)

    Raises `RuntimeError` without an active SparkSession and where GPUs are wanted that Spark doesn't know of,
    `ValueError` and `TypeError` for bad arguments.
    """

    def __init__(
        self,
        num_processes: int = _ONE,
        local_mode: bool = True,
        use_gpu: bool = True,
        _ssl_conf: str = checks.SSL_OVERRIDE,
        *,
        num_workers: int | None = None,
        warm: bool | None = None,
        max_restarts: int | None = None,
        restart_on: Iterable[str] | None = None,
        hang_timeout: float | None = None,
        grace: float | None = None,
    ) -> None:
        if num_workers is not None:
            if num_processes is not _ONE:
                raise TypeError("num_workers is an alias of num_processes; give one of them")
            warnings.warn("num_workers is deprecated; use num_processes", DeprecationWarning, stacklevel=2)
            num_processes = num_workers
        self.num_processes = checks.check_num_processes(num_processes)
        self.local_mode = local_mode
        self.use_gpu = use_gpu
        self.ssl_conf = _ssl_conf
        self._given = given(
            warm=warm,
            max_restarts=max_restarts,
            restart_on=restart_on,
            hang_timeout=hang_timeout,
            grace=grace,
        )
        self.logger = _logger()
        self.spark = _active_session()
        self.last_run: Run | None = None
        if local_mode:
            if use_gpu:
                resources = gpus.resources_of(self.spark)
                self.num_processes = gpus.driver_limited(
                    self.num_processes, self._conf, resources, self.logger
                )
            self.num_tasks = 1
        else:
            self.num_tasks = gpus.num_tasks(self.num_processes, use_gpu=use_gpu, conf_get=self._conf)

    def run(self, train_object: TrainObject, *args: Any, **kwargs: Any) -> Any:
        """Trains, and returns what rank 0 returned.

        `train_object` is a function, called with `args` and `kwargs` in every rank, or the path of a Python
        file, run with `args` as its command line. A file's result is what it gave to `phalanx.set_result`,
        else None. Blocks until the training is over, and shows the ranks' output meanwhile; an interrupt
        cancels it.

        Raises `TrainingError` (a `RuntimeError`) where the training fails, with the cause; `UnpicklableError`
        (a `TypeError`) where the function can't be sent; before anything is started what `checks` finds.
        """
        return self._drive(self._job(train_object, args, kwargs))

    def run_async(self, train_object: TrainObject, *args: Any, **kwargs: Any) -> Run:
        """As `run`, but returns at once: the `Run` that was started has `result()`, `results()`, `cancel()`, `phase`,
        `stacks()`, `logs(rank)` and `done`."""
        job = self._job(train_object, args, kwargs)
        lease = self._lease()
        try:
            run = self.last_run = _new_run(**job, gpus=lease.gpus)
            self.logger.info(f"Started {self._where()}")
            run.start()
        except BaseException:
            lease.release()
            raise
        lease.release_when(lambda: run.done)
        return run

    def start(self, train_object: TrainObject, *args: Any, **kwargs: Any) -> Run:
        """Another name of `run_async`."""
        return self.run_async(train_object, *args, **kwargs)

    def _train_on_dataframe(
        self, train_function: Callable[..., Any], spark_dataframe: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """As `run`, in the tasks that compute the DataFrame's partitions, one for each.

        Inside the function `_get_spark_partition_data_loader` gives the rank its partition. The DataFrame
        needs as many partitions as the run has tasks, about equally large and none of them empty.

        Raises `ValueError` in local mode, and where the number of partitions is known to be another.
        """
        if self.local_mode:
            raise ValueError(
                "TorchDistributor.train_on_dataframe requires setting TorchDistributor.local_mode to False."
            )
        return self._drive(self._job(train_function, args, kwargs, dataframe=spark_dataframe))

    def _drive(self, job: dict[str, Any]) -> Any:
        lease = self._lease()
        try:
            run = self.last_run = _new_run(**job, gpus=lease.gpus)
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

        checks.check_train_object(train_object, kwargs)
        settings = Settings.read(self._conf, keys=_conf_keys(self.spark), given=self._given)
        name = name_of(train_object)
        if callable(train_object):
            payload = function_payload(train_object, args, kwargs, sys_path=sys.path)
        else:
            payload = file_payload(train_object, args, sys_path=sys.path)
        if not self.local_mode:
            checks.check_encryption(self._conf, self.logger, self.ssl_conf, type(self).__name__)
            checks.check_dynamic_allocation(self._conf)
            if dataframe is not None:
                checks.check_partitions(dataframe, self.num_tasks)
            checks.check_slots(self.spark, self.num_tasks, settings.slots_timeout, self.logger)
        job = _native.new_job(
            name=name,
            ranks=self.num_processes,
            tasks=self.num_tasks,
            use_gpu=self.use_gpu,
            settings=settings.values,
        )
        return {
            "spark": self.spark,
            "job": job,
            "payload": payload,
            "name": name,
            "local_mode": self.local_mode,
            "num_tasks": self.num_tasks,
            "use_gpu": self.use_gpu,
            "settings": settings,
            "dataframe": dataframe,
        }

    def _lease(self) -> gpus.Lease:
        """The driver's GPUs for a run: in local mode, and on a local master, whose tasks get none."""
        remote = not hasattr(self.spark, "_jsparkSession")
        on_driver = self.local_mode or (checks.is_local(self._conf("spark.master") or "") and not remote)
        if not self.use_gpu or not on_driver:
            return gpus.take([], 0)
        visible = os.environ.get(gpus.VISIBLE)
        if remote:
            # the resources are those of the server, but the ranks run here
            all_gpus = visible.split(",") if visible else [str(i) for i in range(self.num_processes)]
        else:
            resources = gpus.resources_of(self.spark)
            all_gpus = gpus.devices(resources["gpu"].addresses if "gpu" in resources else [], visible)
        return gpus.take(all_gpus, self.num_processes)

    def _where(self) -> str:
        if self.local_mode:
            return f"local training with {self.num_processes} processes"
        return f"distributed training with {self.num_processes} executor processes"

    def _conf(self, key: str) -> str | None:
        value: str | None = self.spark.conf.get(key, None)
        return value


def _new_run(**fields: Any) -> Run:
    from .run import Run

    return Run(**fields)


def _active_session() -> Any:
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except Exception as problem:
        raise RuntimeError(
            "TorchDistributor needs an active SparkSession; make one by SparkSession.builder.getOrCreate()"
        ) from problem


def _conf_keys(spark: Any) -> list[str]:
    try:
        return list(spark.conf.getAll)  # Spark 4
    except Exception:
        try:
            return [key for key, _ in spark.sparkContext.getConf().getAll()]
        except Exception:  # Spark Connect of Spark 3
            return []


def _logger() -> logging.Logger:
    """The logger that pyspark's class has; it prints to stderr where nobody configured logging."""
    logger = logging.getLogger("TorchDistributor")
    logger.setLevel(logging.INFO)
    if not logger.handlers and not logging.getLogger().handlers:
        logger.addHandler(logging.StreamHandler(sys.stderr))
    return logger
