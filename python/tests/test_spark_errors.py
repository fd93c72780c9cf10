"""What of an exception is handed on when a stage fails, and the addresses that Spark tells.

What is made of an exception's words is in `tests/contract/checks.json`.
"""

from __future__ import annotations

from typing import Any

import pytest
from phalanx import _native
from phalanx.stages.python_task import host_of
from phalanx.stages.spark_errors import explain
from phalanx.stages.stage import Stage
from support.fake_run import request_of


def test_a_driver_that_has_gone_is_known_by_py4js_own_exceptions() -> None:
    from py4j.protocol import Py4JError, Py4JNetworkError

    assert explain(Py4JNetworkError("Answer from Java side is empty")) == (
        "start",
        "the driver's JVM did not answer (Answer from Java side is empty); has it ended, or run out of memory?",
    )
    refused = "An error occurred while calling z:X.y. Trace:\npy4j.Py4JException: Method y([]) does not exist\n\tat z"
    assert explain(Py4JError(refused))[1].endswith(
        "refused the call: py4j.Py4JException: Method y([]) does not exist"
    )


def test_of_an_exception_of_the_jvm_its_own_words_are_handed_on_and_not_py4js() -> None:
    class JavaError(Exception):
        java_exception = "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled"

    assert explain(JavaError("An error occurred while calling o47.x.")) == (
        "cancelled",
        "[SPARK_JOB_CANCELLED] Job 3 cancelled",
    )


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.1:7077", "10.0.0.1"), ("[fd00::1]:7077", "fd00::1"), ("fd00::1", "fd00::1"), ("name", "name")],
)
def test_hosts_are_parsed_as_addresses(address: str, host: str) -> None:
    assert host_of(address) == host


def test_a_stage_says_that_it_is_over_once_for_each_start() -> None:
    ended: list[tuple[int, str | None]] = []

    class Hub:
        def stage_ended(self, attempt: int, problem: str | None) -> None:
            ended.append((attempt, problem))

    class Failing(Stage):
        def _run(self, hub: Any, attempt: int) -> None:
            if attempt == 1:
                raise RuntimeError("no executors")

    job = _native.Job(name="train", ranks=1, tasks=1, use_gpu=False, settings={})
    stage, hub = Failing(request_of(job)), Hub()
    for attempt in (0, 1, 2):
        stage.start(hub, attempt)  # type: ignore[arg-type]
        assert stage.join(30)
    assert ended == [(0, None), (1, "the Spark stage failed: no executors"), (2, None)], "STAGE-6"
