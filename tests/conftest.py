"""What the tests across languages share: one local-cluster session, and a guard against leftover processes."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Executors are to have the Python of the tests, and everything stays on the loopback.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def guards() -> list[psutil.Process]:
    """The guards of ranks that belong to this process or to the executors it started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name() == "phalanx-guard" and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def gone(pids: list[int]) -> bool:
    """Whether none of these processes runs."""
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            continue
    return True


def eventually(what: str, within: float, is_so: Any) -> Any:
    """Waits until `is_so()` is true and returns it; fails with `what` if it isn't `within` so many seconds."""
    until = time.monotonic() + within
    while not (found := is_so()):
        assert time.monotonic() < until, f"not within {within} s: {what}"
        time.sleep(0.02)
    return found


@pytest.fixture(autouse=True)
def no_guard_is_left() -> Iterator[None]:
    yield
    # A test that failed must not take the cluster's slots from the others.
    for run in [thing for thing in gc.get_objects() if type(thing).__name__ == "Run" and not thing.done]:
        run.cancel("the test is over")
    eventually("no guard of ranks is left", 10, lambda: not guards())


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Two executors of one core each, with processes of their own."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .appName("phalanx-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.phalanx.grace", "1s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    # The first task of an executor imports pandas and pyarrow, which is nobody's test.
    session.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long", barrier=True).collect()
    yield session
    session.stop()


@pytest.fixture(params=["local", "stage"])
def distributor(request: pytest.FixtureRequest, spark: Any) -> Any:
    """A distributor of two ranks, on the driver and on executors."""
    from phalanx import TorchDistributor

    return TorchDistributor(num_processes=2, local_mode=request.param == "local", use_gpu=False)
