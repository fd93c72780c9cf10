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


def test_what_wraps_an_error_on_its_way_is_left_out() -> None:
    for text in (
        "dev.phalanx.spark.TrainingException: no rank could be started",
        "org.apache.spark.SparkException: no rank could be started",
        "(org.apache.spark.SparkSQLException) no rank could be started",
        "(org.apache.spark.SparkException) dev.phalanx.spark.TrainingException: no rank could be started\n\tat x.y",
    ):
        assert explain(RuntimeError(text)) == "no rank could be started"
    assert explain(RuntimeError("java.lang.OutOfMemoryError: heap")) == "java.lang.OutOfMemoryError: heap"


def test_a_lost_executor_is_told_and_not_only_that_a_barrier_task_failed() -> None:
    text = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier "
        "ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(0, 1) finished "
        "unsuccessfully.\nExecutorLostFailure (executor 1 exited) Reason: Command exited with code 137"
    )
    lost = "ExecutorLostFailure (executor 1 exited) Reason: Command exited with code 137"
    assert explain(RuntimeError(text)) == lost


def test_a_driver_or_server_that_has_gone_is_said_in_words() -> None:
    from py4j.protocol import Py4JError, Py4JNetworkError

    assert explain(Py4JNetworkError("Answer from Java side is empty")) == (
        "the driver's JVM did not answer (Answer from Java side is empty); has it ended, or run out of memory?"
    )
    refused = "An error occurred while calling z:X.y. Trace:\npy4j.Py4JException: Method y([]) does not exist\n\tat z"
    assert explain(Py4JError(refused)).endswith(
        "refused the call: py4j.Py4JException: Method y([]) does not exist"
    )
    rpc = (
        "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
        '\tdetails = "failed to connect to all addresses"\n>'
    )
    said = "the Spark Connect server did not answer: failed to connect to all addresses"
    assert explain(RuntimeError(rpc)) == said


def test_a_cancel_is_told_from_a_failure_by_sparks_condition() -> None:
    assert is_cancellation(
        RuntimeError("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group g")
    )
    assert is_cancellation(RuntimeError("(java.X) [OPERATION_CANCELED] Operation has been canceled."))
    assert not is_cancellation(RuntimeError(WORKER))


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.1:7077", "10.0.0.1"), ("[fd00::1]:7077", "fd00::1"), ("fd00::1", "fd00::1"), ("name", "name")],
)
def test_hosts_are_parsed_as_addresses(address: str, host: str) -> None:
    assert host_of(address) == host
