"""What only a real session shows, of one core and without the jar: its settings, its partitions, that it stays."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from phalanx.distributor import _conf_keys
from phalanx.driver import preflight
from phalanx.driver.payload import function_payload
from phalanx.errors import UnpicklableError
from phalanx.integrations import accelerate
from phalanx.settings import Settings
from phalanx.stages.choice import why_not

pytestmark = pytest.mark.timeout(60)


def test_a_real_session_gives_its_settings(spark: Any) -> None:
    spark.conf.set("spark.phalanx.slots.timeout", "8s")
    try:
        settings = Settings.read(lambda key: spark.conf.get(key, None))
    finally:
        spark.conf.unset("spark.phalanx.slots.timeout")
    assert settings.slots_timeout == 8.0


def test_only_what_a_configuration_has_is_asked_for(spark: Any) -> None:
    asked: list[str] = []

    def conf_get(key: str) -> str:
        asked.append(key)
        return "8s"

    spark.conf.set("spark.phalanx.slots.timeout", "8s")
    try:
        settings = Settings.read(conf_get, keys=_conf_keys(spark))
    finally:
        spark.conf.unset("spark.phalanx.slots.timeout")
    assert (asked, settings.slots_timeout) == (["spark.phalanx.slots.timeout"], 8.0)


LOGGER = logging.getLogger("test")


def test_a_local_master_that_is_too_small_is_refused_at_once(spark: Any) -> None:
    preflight.check_slots(spark, 1, 0, LOGGER)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"with master local\[1\] there are never more than 1"):
        preflight.check_slots(spark, 2, 60, LOGGER)
    assert time.monotonic() - began < 30


def test_partitions_are_counted_where_that_runs_nothing(spark: Any) -> None:
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    before = jobs()
    frame = spark.range(0, 100, 1, 3)
    assert preflight.partition_count(frame) == 3
    assert preflight.partition_count(frame.repartition(5).selectExpr("id + 1 AS x").where("x > 2")) == 5
    assert preflight.partition_count(frame.repartition(6, "id")) == 6
    assert preflight.partition_count(frame.repartition("id")) is None
    assert preflight.partition_count(frame.groupBy("id").count()) is None
    assert preflight.partition_count(object()) is None
    assert jobs() == before


def test_a_session_without_the_jar_or_without_a_jvm_says_so(spark: Any) -> None:
    problem = why_not(spark)
    assert problem is not None
    assert problem.startswith("the jar is not on the driver's class path; ")
    assert "phalanx.configure(SparkSession.builder)" in problem
    remote: Any = SimpleNamespace()
    assert "Spark Connect" in str(why_not(remote))


def test_the_launcher_sees_what_the_distributor_sees_in_every_thread(spark: Any) -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(accelerate._what_there_is, None).result(30) == (True, False)


def test_a_spark_session_is_told_to_stay(spark: Any) -> None:
    notebook: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    exec("def train(): return spark.range(3).count()", notebook)
    frame = spark.range(3)
    for train, arguments, said in (
        (
            notebook["train"],
            {},
            "train can't be sent to the ranks: its global variable 'spark' (a SparkSession) lives",
        ),
        (lambda: frame, {}, "(a DataFrame) lives in the driver"),
        (print, {"context": spark.sparkContext}, "(a SparkContext) lives in the driver"),
    ):
        with pytest.raises(UnpicklableError, match="can't go to the ranks") as refused:
            function_payload(train, (), arguments, sys_path=[])
        assert said in str(refused.value)
