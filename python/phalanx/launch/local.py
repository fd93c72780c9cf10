"""`run_local`: a run on this host, without Spark.

LAUNCH-5 (no-spark): nothing of pyspark is imported, and no JVM is started.
LAUNCH-6 (as-local-mode): ranks have what they have under `TorchDistributor(local_mode=True)`: the same node, hub, warm
ranks, output, restarts and checkpoints. Only GPUs come from the host in the place of Spark.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from .. import _native
from ..display.shown import Shown
from ..integrations.mlflow import callers_run
from ..options import Options
from ..plumbing.own_folder import own_folder
from ..request import preflight
from ..request.payload import Payload, file_payload, function_payload
from ..request.run_owner import check_given, owner_settings
from ..request.run_request import RunRequest
from ..request.settings import Settings
from ..request.train_object import name_of
from ..run.run import Run
from ..stages.local import LocalStage
from .gpus import GpuLease, gpus_here

logger = logging.getLogger("phalanx")

_PREFIX = "spark.phalanx."
_NEAR = ("127.0.0.1", "127.0.0.1")


def run_local(
    train_object: Callable[..., Any] | str | os.PathLike[str],
    /,
    *args: Any,
    num_processes: int = 1,
    use_gpu: bool | None = None,
    wait: bool = True,
    env: Mapping[str, str] | None = None,
    mlflow: bool | Literal["all"] | None = None,
    conf: Mapping[str, str] | None = None,
    warm: bool | None = None,
    max_restarts: int | None = None,
    restart_on: Iterable[str] | None = None,
    max_preemptions: int | None = None,
    hang_timeout: float | None = None,
    grace: float | None = None,
    cpus_per_rank: int | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_name: str | None = None,
    logs: str | int | Iterable[int] | None = None,
    progress: str | None = None,
    **kwargs: Any,
) -> Any:
    """Trains with `num_processes` ranks on this host, without Spark; returns what rank 0 returned.

    >>> from phalanx import run_local
    >>> model = run_local(train, 1e-3, num_processes=2)

    `train_object` is a function, called with `args` and `kwargs` in every rank, or the path of a Python file, run with
    `args` as its command line.

    use_gpu     True: each rank has a GPU of its own. False: ranks see none. None: ranks have GPUs where the host has
                some, each its own if there are enough
    wait        False returns the `Run` at once, as `TorchDistributor.start` does
    conf        settings by their names in docs/configuration.md: `{"spark.phalanx.warm.imports": "pandas"}`

    The other options are those of `TorchDistributor`. A keyword of `train_object` that is called as one of them goes
    through `functools.partial`.

    Raises `ValueError`, `TypeError` or `FileNotFoundError` for what can't be run, `RuntimeError` where GPUs are missing
    or in use, before anything has started; `TrainingError` (a `RuntimeError`) where the training fails.
    """
    preflight.check_train_object(train_object, kwargs)
    options = Options(
        warm=warm,
        max_restarts=max_restarts,
        restart_on=restart_on,
        max_preemptions=max_preemptions,
        hang_timeout=hang_timeout,
        grace=grace,
        cpus_per_rank=cpus_per_rank,
        checkpoint_dir=checkpoint_dir,
        checkpoint_name=checkpoint_name,
        env=env,
        mlflow=mlflow,
        logs=logs,
        progress=progress,
    )
    settings = settings_of(conf or {}, options.settings)
    if callable(train_object):
        payload = function_payload(train_object, args, kwargs, sys_path=sys.path)
    else:
        payload = file_payload(train_object, args, sys_path=sys.path)
    run = local_run(
        train_object,
        payload,
        ranks=preflight.check_num_processes(num_processes),
        use_gpu=use_gpu,
        settings=settings,
        options=options,
    )
    return run.drive() if wait else run.start()


def settings_of(conf: Mapping[str, str], given: Mapping[str, str]) -> Settings:
    """The settings of a run: those of `conf`, and over them those that are `given`.

    Raises `ValueError` for a key that is none of Phalanx's, and for a bad value.
    """
    for key in conf:
        if not key.startswith(_PREFIX):
            raise ValueError(
                f"{key} is not a Phalanx setting; without Spark only {_PREFIX}* settings are allowed"
            )
    return Settings.read(conf.get, keys=conf.keys() | given.keys(), given=given)


def local_run(
    train_object: object,
    payload: bytes,
    *,
    ranks: int,
    use_gpu: bool | None,
    settings: Settings,
    options: Options,
) -> Run:
    """A run of this on this host, which has its GPUs and is not started; of `options` only what is no setting counts.
    Raises as `run_local`."""
    env = dict(options.env or {})
    variables = _native.rank_variables(settings.values, env)
    context, tracked = callers_run(options.mlflow, local_mode=True, given=env)
    gpus = [] if use_gpu is False else gpus_here()
    job = _native.Job(
        name=name_of(train_object),
        ranks=ranks,
        tasks=1,
        use_gpu=bool(gpus) if use_gpu is None else use_gpu,
        settings=settings.values
        | owner_settings(train_object)
        | {"phalanx.localMode": "true"}
        | ({} if tracked is None else tracked.settings),
    )
    check_given(job, settings.values, variables)
    if job.logs_uri is not None:
        raise ValueError(
            f"spark.phalanx.logs.directory is {job.logs_uri}, and without Spark nothing here can write to a URI; "
            "give it a folder"
        )
    lease = _lease(gpus, ranks, use_gpu)
    try:
        request = RunRequest(
            job=job,
            payload=Payload(payload),
            settings=settings,
            variables={**context, **variables},
            endpoint=_NEAR,
            work_dir=own_folder(),
        )
        shown = Shown(job.name, settings.progress)
        return Run(
            request,
            stage=LocalStage(request, gpus=lease.gpus, env={}, copy_files=None),
            lease=lease,
            inputs=None,
            observers=[shown] if tracked is None else [shown, tracked],
            face=shown,
        )
    except BaseException:
        lease.release()
        raise


def _lease(gpus: list[str], ranks: int, use_gpu: bool | None) -> GpuLease:
    if use_gpu or len(gpus) >= ranks:
        return GpuLease(gpus, ranks)
    if gpus:
        logger.warning(f"{ranks} ranks share {len(gpus)} GPUs, since this host has no more")
    return GpuLease(gpus, len(gpus))
