"""What tests of scoring share: who asks the model, and that none is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import rows
from support.programs import eventually, models_here


@pytest.fixture(params=["jvm", "python"])
def over(request: pytest.FixtureRequest) -> Any:
    """Who asks the model: executors' JVMs, or Python workers."""
    return request.param


@pytest.fixture
def session(spark: Any, over: str) -> Iterator[Any]:
    """A session whose models stay for as long as `rows` says."""
    settings = {"spark.phalanx.predict.idleTimeout": f"{rows.IDLE_SECONDS}s", "spark.phalanx.stage": over}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield spark
    for key in settings:
        spark.conf.unset(key)


@pytest.fixture(scope="module")
def no_model_is_left() -> Iterator[None]:
    """After the last test of a file."""
    yield
    eventually("no process of a model is left", 30, lambda: not models_here())


@pytest.fixture
def counting(tmp_path: Path) -> models.Counting:
    return models.Counting(str(tmp_path / "calls"))
