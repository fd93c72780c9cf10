"""`spark.phalanx.logs.directory` where it takes a JVM to write to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor
from phalanx.spark.session import copy_by_hadoop
from support.tiers import whole

pytestmark = pytest.mark.timeout(100)
SETTING = "spark.phalanx.logs.directory"


def say_hello() -> str:
    print("hello")
    return "done"


@pytest.fixture
def mounted(spark: Any, tmp_path: Path) -> Iterator[str]:
    """The URI of a folder in a file system of Hadoop's own."""
    kept = tmp_path / "kept"
    kept.mkdir()
    conf, key = (
        spark.sparkContext._jsc.hadoopConfiguration(),
        f"fs.viewfs.mounttable.{tmp_path.name}.link./logs",
    )
    conf.set(key, kept.as_uri())
    yield f"viewfs://{tmp_path.name}/logs"
    conf.unset(key)
    spark.conf.unset(SETTING)


def test_a_local_run_copies_its_logs_through_the_drivers_jvm(
    spark: Any, mounted: str, tmp_path: Path
) -> None:
    spark.conf.set(SETTING, mounted)
    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    assert distributor.run(say_hello) == "done"
    [job] = (tmp_path / "kept").glob("phalanx-*")
    assert {log.name: log.read_text() for log in job.glob("rank-*")} == {
        "rank-0.log": "hello\n",
        "rank-1.log": "hello\n",
    }


def test_hadoop_makes_the_folder_and_writes_over_what_is_there(spark: Any, tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    for text in ("first", "second"):
        log.write_text(text)
        copy_by_hadoop(spark, [str(log)], f"file://{tmp_path}/kept/deep")
        assert (tmp_path / "kept/deep/rank-0.log").read_text() == text


def test_a_run_whose_logs_cant_be_copied_succeeds_and_says_why(
    spark: Any, mounted: str, caplog: pytest.LogCaptureFixture
) -> None:
    spark.conf.set(SETTING, "nosuchscheme://bucket/logs")
    distributor = TorchDistributor(num_processes=1, local_mode=True, use_gpu=False)
    with caplog.at_level(logging.WARNING, "phalanx"):
        assert distributor.run(say_hello) == "done", "NODE-26"
    assert "nosuchscheme" in caplog.text


def test_a_file_system_that_hangs_is_not_waited_for() -> None:
    over = threading.Event()

    class Hanging:
        """A session of a driver whose JVM doesn't answer."""

        _jsparkSession = None

        @property
        def sparkContext(self) -> Any:
            over.wait(60)
            raise RuntimeError("the JVM has gone")

    with pytest.raises(TimeoutError, match=r"longer than 0.1 s"):
        copy_by_hadoop(Hanging(), [], "hdfs://nobody/logs", within=0.1)  # type: ignore[arg-type]
    over.set()


@whole("over the python stage")
def test_the_python_stage_says_before_its_start_that_logs_will_stay(
    spark: Any, mounted: str, caplog: pytest.LogCaptureFixture
) -> None:
    spark.conf.set(SETTING, mounted)
    distributor = TorchDistributor(num_processes=1, local_mode=False, use_gpu=False)
    with caplog.at_level(logging.WARNING, "phalanx"):
        assert distributor.run(say_hello) == "done"
    said = [
        record.getMessage() for record in caplog.records if "logs stay on their hosts" in record.getMessage()
    ]
    assert len(said) == 1
    assert mounted in said[0]
