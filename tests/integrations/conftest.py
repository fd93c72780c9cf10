"""What the integrations' tests share: over what ranks run, and what a pool has imported for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from phalanx import TorchDistributor


@pytest.fixture(scope="module", autouse=True)
def warm_imports(request: pytest.FixtureRequest) -> Iterator[None]:
    """A pool imports `WARM_IMPORTS` of the test's module once for all its tests."""
    modules = getattr(request.module, "WARM_IMPORTS", None)
    if modules is None:
        yield
        return
    spark = request.getfixturevalue("spark")
    spark.conf.set("spark.phalanx.warm.imports", modules)
    yield
    spark.conf.unset("spark.phalanx.warm.imports")


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
