"""A session whose serializer is Kryo, and which knows no class that it was not told of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from phalanx import TorchDistributor
from phalanx.spark import jar
from support import sessions
from support.programs import ONE_EXECUTOR, WARM_IF_ASKED, classic_conf
from support.tiers import whole

pytestmark = pytest.mark.timeout(150)
STRICT = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrationRequired": "true",
}


@pytest.fixture(scope="module")
def strict() -> Iterator[Any]:
    yield sessions.classic(classic_conf(ONE_EXECUTOR) | WARM_IF_ASKED | STRICT)
    sessions.end()


@whole("another serializer")
@pytest.mark.parametrize("over", ["jvm", "python"])
@pytest.mark.parametrize(
    "size", [10, pytest.param(40 << 20, marks=whole("a large payload"))]
)  # in the closure; beside it
def test_ranks_run_and_payloads_arrive(strict: Any, over: str, size: int) -> None:
    if over == "jvm" and not os.path.exists(jar.expected_path()):
        pytest.skip("the jar is not built; `make build` does it")
    strict.conf.set("spark.phalanx.stage", over)
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    data = os.urandom(size)
    assert distributor.run(lambda data: (len(data), data[-1]), data) == (size, data[-1])
