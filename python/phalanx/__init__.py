"""Phalanx: distributed PyTorch training inside Apache Spark.

This file only has names. Each is imported when it is first used.
"""

from __future__ import annotations

import os

from .feeding.partitions.pyspark_loader import install as _tell_pyspark
from .process_group.registration import install as _tell_torch
from .rank.contract import ENV_RANK_DIR as _ENV_RANK_DIR

TYPE_CHECKING = False  # as typing's, without the milliseconds that importing typing costs every rank
if TYPE_CHECKING:
    from . import checkpoint as checkpoint
    from ._native import VERSION as __version__
    from .checkpoint import checkpoint_dir as checkpoint_dir
    from .diagnosis.doctor import doctor as doctor
    from .distributor import TorchDistributor as TorchDistributor
    from .errors import RankOutcome as RankOutcome
    from .errors import TrainingError as TrainingError
    from .errors import UnpicklableError as UnpicklableError
    from .feeding.replicated import replicated as replicated
    from .feeding.source import data as data
    from .feeding.stored.stored import stored as stored
    from .feeding.stream.streamed import streamed as streamed
    from .integrations.accelerate import notebook_launcher as notebook_launcher
    from .integrations.deepspeed import DeepspeedTorchDistributor as DeepspeedTorchDistributor
    from .launch.local import run_local as run_local
    from .options import Options as Options
    from .process_group.comm_hook import average_hook as average_hook
    from .rank.notices import Notice as Notice
    from .rank.notices import Preempted as Preempted
    from .rank.notices import preempted as preempted
    from .rank.reporting import phase as phase
    from .rank.reporting import report as report
    from .rank.reporting import set_result as set_result
    from .results import MissingResultError as MissingResultError
    from .results import UnavailableResult as UnavailableResult
    from .run.run import Run as Run
    from .scoring.batch_function import predict_batch_udf as predict_batch_udf
    from .scoring.predict import predict as predict
    from .spark.configure import configure as configure
    from .spark.jar import jar_path as jar_path
    from .spark.jar import spark_conf as spark_conf

_HOMES = {
    "DeepspeedTorchDistributor": "integrations.deepspeed",
    "MissingResultError": "results",
    "Notice": "rank.notices",
    "Options": "options",
    "Preempted": "rank.notices",
    "RankOutcome": "errors",
    "Run": "run.run",
    "TorchDistributor": "distributor",
    "TrainingError": "errors",
    "UnavailableResult": "results",
    "UnpicklableError": "errors",
    "average_hook": "process_group.comm_hook",
    "jar_path": "spark.jar",
    "notebook_launcher": "integrations.accelerate",
    "checkpoint_dir": "checkpoint",
    "configure": "spark.configure",
    "data": "feeding.source",
    "doctor": "diagnosis.doctor",
    "phase": "rank.reporting",
    "predict": "scoring.predict",
    "predict_batch_udf": "scoring.batch_function",
    "preempted": "rank.notices",
    "replicated": "feeding.replicated",
    "report": "rank.reporting",
    "run_local": "launch.local",
    "set_result": "rank.reporting",
    "spark_conf": "spark.jar",
    "stored": "feeding.stored.stored",
    "streamed": "feeding.stream.streamed",
}
__all__ = [
    "DeepspeedTorchDistributor",
    "MissingResultError",
    "Notice",
    "Options",
    "Preempted",
    "RankOutcome",
    "Run",
    "TorchDistributor",
    "TrainingError",
    "UnavailableResult",
    "UnpicklableError",
    "__version__",
    "average_hook",
    "checkpoint_dir",
    "configure",
    "data",
    "doctor",
    "jar_path",
    "notebook_launcher",
    "phase",
    "predict",
    "predict_batch_udf",
    "preempted",
    "replicated",
    "report",
    "run_local",
    "set_result",
    "spark_conf",
    "stored",
    "streamed",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if name == "checkpoint":
        import importlib

        return importlib.import_module(f"{__name__}.checkpoint")
    if name == "__version__":
        from ._native import VERSION

        return VERSION
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_tell_torch()
_tell_pyspark()
if _ENV_RANK_DIR in os.environ:  # in a rank, or in a program below one
    from .rank import child_ending

    child_ending.install()
