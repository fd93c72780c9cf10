"""`phalanx.predict` with models of MLflow's, from a registry and a store of runs that the caller names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import phalanx
import pytest
import torch
from rows import numbers
from support.tiers import whole

pytestmark = [pytest.mark.usefixtures("no_model_is_left"), pytest.mark.timeout(200)]


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[str]:
    """One with its runs, its models and their files in a folder of the test's."""
    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_registry_uri(f"sqlite:///{tmp_path}/mlflow.db")
    yield mlflow.create_experiment("scoring", artifact_location=str(tmp_path / "files"))
    mlflow.set_tracking_uri(before[0])
    mlflow.set_registry_uri(before[1])


class Sums(mlflow.pyfunc.PythonModel):
    """The sum of two columns, and its sign in words."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        import pandas as pd

        sums = model_input["x"] + model_input["shift"]
        return pd.DataFrame({"sum": sums, "sign": ["below" if value < 0 else "not below" for value in sums]})


@whole("another kind of model")
def test_models_of_a_registry_and_of_runs_are_those_that_the_callers_mlflow_has(
    session: Any, experiment: str
) -> None:
    torch.manual_seed(1)
    net = torch.nn.Linear(3, 2).eval()
    with mlflow.start_run(experiment_id=experiment) as run:
        mlflow.pytorch.log_model(
            net, name="net", registered_model_name="net", pip_requirements=[], serialization_format="pickle"
        )
        mlflow.pyfunc.log_model(name="sums", python_model=Sums(), pip_requirements=[])

    rows = numbers(session, 40).selectExpr("*", "array(float(x), 0.5F, 1F) as features", "-7D as shift")
    scored = phalanx.predict(rows, "models:/net/1", inputs="features", outputs="out array<float>")
    scored = phalanx.predict(
        scored, f"runs:/{run.info.run_id}/sums", inputs=["x", "shift"], outputs="sum double, sign string"
    )
    found = scored.collect()
    assert [row.id for row in found] == list(range(40))
    with torch.inference_mode():
        expected = net(torch.tensor([row.features for row in found]))
    assert torch.allclose(torch.tensor([row.out for row in found]), expected, atol=1e-6), "SCORE-23"
    assert [(row.sum, row.sign) for row in found] == [
        (number - 7, "below" if number < 7 else "not below") for number in range(40)
    ], "SCORE-23"
