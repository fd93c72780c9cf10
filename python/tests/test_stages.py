"""What is said of a stage that failed, and of the addresses that Spark tells."""

from __future__ import annotations

import pytest
from phalanx.stages import explain, host_of, is_cancellation

WORKER = """An error occurred while calling o47.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: ResultTask(0, 1) failed.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
RuntimeError: Phalanx can't be imported by the executors' Python (python3 on host-7): No module named 'phalanx'

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


def test_a_workers_own_error_is_what_a_failed_stage_says() -> None:
    assert explain(RuntimeError(WORKER)).startswith("RuntimeError: Phalanx can't be imported")
    assert "host-7" in explain(RuntimeError(WORKER))


def test_an_error_without_a_traceback_says_its_first_line_and_one_without_words_its_class() -> None:
    assert explain(ValueError("first\nsecond")) == "first"
    assert explain(ValueError()) == "ValueError"
    assert len(explain(ValueError("x" * 9000))) < 600


def test_a_cancel_is_told_from_a_failure_by_sparks_condition() -> None:
    assert is_cancellation(
        RuntimeError("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group g")
    )
    assert not is_cancellation(RuntimeError(WORKER))


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.1:7077", "10.0.0.1"), ("[fd00::1]:7077", "fd00::1"), ("fd00::1", "fd00::1"), ("name", "name")],
)
def test_hosts_are_parsed_as_addresses(address: str, host: str) -> None:
    assert host_of(address) == host
