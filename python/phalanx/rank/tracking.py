"""Which ranks continue the caller's MLflow run. The caller's end is `integrations/mlflow.py`.

RANK-31 (first-rank): rank 0 has the caller's run in its environment, and what it logs lands there. What another rank
logs goes to a folder of its own that ends with it, so that it makes no run at the caller's server. The registry of
models is the caller's in every rank.
"""

from __future__ import annotations

import os

from . import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

FIRST, ALL = "first", "all"
"""What `PHALANX_MLFLOW` can be."""

OF_THE_RUN = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
"""What says which run it is, and with it where its files go."""


def enter(directory: str, env: MutableMapping[str, str] | None = None) -> None:
    """To be called in a rank, whose private folder is `directory`, before anything of the user's."""
    env = os.environ if env is None else env
    whose = env.pop(contract.ENV_MLFLOW, "")
    if whose != FIRST or env.get(contract.ENV_RANK, "0") == "0":
        return
    for name in OF_THE_RUN:
        env.pop(name, None)
    if callers := env.get("MLFLOW_TRACKING_URI"):
        env.setdefault("MLFLOW_REGISTRY_URI", _registry_of(callers))
    env["MLFLOW_TRACKING_URI"] = "file://" + os.path.join(os.path.abspath(directory), "mlruns")
    env["MLFLOW_ALLOW_FILE_STORE"] = "true"


def _registry_of(uri: str) -> str:
    """Where MLflow 3 has the models if only the tracking URI is known."""
    scheme, colon, profile = uri.partition(":")
    return "databricks-uc" + colon + profile if scheme == "databricks" else uri
