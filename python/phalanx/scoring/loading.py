"""Makes a model ready in its process: each function returns the function from a batch to its outputs.

SCORE-23 (callers-mlflow): a model of MLflow's is looked for where the caller's MLflow has its runs and its models.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

Model = Callable[[Any], Any]


def module(given: Any) -> Model:
    """A `torch.nn.Module`, in evaluation mode."""
    given.eval()
    return given  # type: ignore[no-any-return]


def torchscript(content: bytes) -> Model:
    """What `torch.jit.save` wrote."""
    import torch

    load: Callable[..., Any] = torch.jit.load
    loaded = load(io.BytesIO(content), map_location="cpu")
    loaded.eval()
    return loaded  # type: ignore[no-any-return]


def exported(content: bytes) -> Model:
    """What `torch.export.save` wrote; it is as it was exported, in training or evaluation mode."""
    import torch

    return torch.export.load(io.BytesIO(content)).module()


def mlflow(uri: str, stores: tuple[str, str] | None) -> Model:
    """A model of MLflow's, by its `pyfunc`, which takes an array of numpy or a DataFrame of pandas.

    `stores` are where the caller's MLflow has its runs and its models; None where the caller has no MLflow, so that
    the process's own says.
    """
    import mlflow.pyfunc

    if stores is not None:
        mlflow.set_tracking_uri(stores[0])
        mlflow.set_registry_uri(stores[1])
    loaded = mlflow.pyfunc.load_model(uri)

    def predict(batch: Any) -> Any:
        if not isinstance(batch, dict):
            return loaded.predict(batch.numpy() if hasattr(batch, "numpy") else batch)
        import pandas as pd  # type: ignore[import-untyped]

        return loaded.predict(pd.DataFrame({name: _series(values) for name, values in batch.items()}))

    return predict


def _series(values: Any) -> Any:
    """A column of pandas, whose rows are numbers, texts or arrays."""
    return list(values.numpy()) if hasattr(values, "numpy") and values.ndim > 1 else values


def made(factory: Callable[[], Model]) -> Model:
    """What a function of the user's returns."""
    model = factory()
    if not callable(model):
        raise TypeError(
            f"the function that makes the model returned {type(model).__name__}, and no function from a batch to its "
            "outputs"
        )
    return model
