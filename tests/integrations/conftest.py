"""What the integrations' tests share: over what ranks run, and what a pool has imported for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from phalanx import TorchDistributor
from support import sessions
from support.programs import ONE_EXECUTOR, classic_conf

# What ranks of these libraries import, and cold ones for seconds each. torch imports `_dynamo` for the first optimizer;
# DeepSpeed, which Accelerate imports where it is installed, imports MLflow. DeepSpeed itself asks for GPUs when it is
# imported, so no pool can have it.
WARM_IMPORTS = "accelerate,lightning.pytorch,transformers.trainer,torch._dynamo,mlflow"


@pytest.fixture(scope="session")
def conf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings of all these tests' session: one executor, since a pool of these libraries takes 7 s of a processor,
    with all that Spark shows and writes of an application."""
    return classic_conf(ONE_EXECUTOR) | {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": tmp_path_factory.mktemp("spark").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.phalanx.env.pass": "PASSED_TOKEN,NOT_SET_ANYWHERE",
    }


@pytest.fixture(scope="module")
def spark(conf: dict[str, str]) -> Any:
    """An executor of two cores."""
    return sessions.classic(conf)


@pytest.fixture(scope="module")
def warm_imports(spark: Any) -> Iterator[None]:
    """A pool imports the libraries once for all tests."""
    spark.conf.set("spark.phalanx.warm.imports", WARM_IMPORTS)
    nameless()
    yield
    spark.conf.unset("spark.phalanx.warm.imports")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    nameless()


def nameless() -> None:
    """Takes the test's name out of the environment: MLflow reads it, and ranks with another one than their pool's
    start cold."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.fixture
def is_warm() -> Callable[[], bool]:
    """For a rank to find out whether it was forked from a pool."""
    return lambda: "phalanx.warm_pool.server" in __import__("sys").modules


@pytest.fixture(params=["local", "python", "jvm"])
def over(request: pytest.FixtureRequest, spark: Any) -> Iterator[str]:
    """Local mode, or the stage that a distributor which the test makes takes."""
    if request.param != "local":
        spark.conf.set("spark.phalanx.stage", request.param)
    yield request.param
    spark.conf.unset("spark.phalanx.stage")


@pytest.fixture
def ranks(over: str) -> Callable[..., TorchDistributor]:
    """Makes a distributor of two ranks with these options."""

    def make(**options: Any) -> TorchDistributor:
        return TorchDistributor(2, local_mode=over == "local", use_gpu=False, **options)

    return make
