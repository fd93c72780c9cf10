"""Phalanx: distributed PyTorch training inside Apache Spark. Names only; each is imported when first used."""

from __future__ import annotations

from .registration import install as _tell_torch

TYPE_CHECKING = False  # as typing's, without the milliseconds that importing typing costs every rank
if TYPE_CHECKING:
    from . import checkpoint as checkpoint
    from .checkpoint import checkpoint_dir as checkpoint_dir
    from .distributor import TorchDistributor as TorchDistributor
    from .errors import TrainingError as TrainingError
    from .hooks import average_hook as average_hook
    from .inside import phase as phase
    from .inside import report as report
    from .inside import set_result as set_result
    from .jar import jar_path as jar_path
    from .jar import spark_conf as spark_conf
    from .results import UnavailableResult as UnavailableResult
    from .run import Run as Run

__version__ = "0.1.0"

_HOMES = {
    "Run": "run",
    "TorchDistributor": "distributor",
    "TrainingError": "errors",
    "UnavailableResult": "results",
    "average_hook": "hooks",
    "jar_path": "jar",
    "checkpoint_dir": "checkpoint",
    "phase": "inside",
    "report": "inside",
    "set_result": "inside",
    "spark_conf": "jar",
}
__all__ = [
    "Run",
    "TorchDistributor",
    "TrainingError",
    "UnavailableResult",
    "__version__",
    "average_hook",
    "checkpoint_dir",
    "jar_path",
    "phase",
    "report",
    "set_result",
    "spark_conf",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if name == "checkpoint":
        import importlib

        return importlib.import_module(f"{__name__}.checkpoint")
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


_tell_torch()
