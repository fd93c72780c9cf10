"""What only a real session shows, of one core and without the jar: its settings, its partitions, that it stays."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from phalanx import _native
from phalanx.errors import UnpicklableError
from phalanx.integrations import accelerate
from phalanx.request import preflight
from phalanx.request.payload import function_payload
from phalanx.request.settings import Settings
from phalanx.spark.session import SessionConf, application_conf
from phalanx.stages.choice import why_not
from support.questions import questions_to_the_jvm

pytestmark = pytest.mark.timeout(60)

LOGGER = logging.getLogger("test")


def test_a_real_session_gives_its_settings(spark: Any) -> None:
    spark.conf.set("spark.phalanx.slots.timeout", "8s")
    try:
        settings = Settings.read(lambda key: spark.conf.get(key, None))
    finally:
        spark.conf.unset("spark.phalanx.slots.timeout")
    assert settings.slots_timeout == 8.0


AWKWARD = (
    "",
    " a, b ;c=d -> (e,f) ",
    """'single', "double", `back`, \\ and \\n""",
    "lines\nof\r\ntwo kinds\n",
    "Grüße, 東京, 🚀, \u2028, \t, \0",
    "{'json': [1, 2]} ${spark.master} $(id) %s",
    "x" * 100_000,
)


@pytest.fixture
def awkward(spark: Any) -> Iterator[dict[str, str]]:
    """Settings of the session that one could misread: some have a key that is like several, or the hash of another."""
    keys = ("Aa", "BB", "a,b", "a=b -> c", "(d", "é\nspark.phalanx.no.such.setting", "spark.phalanx.logs")
    settings = {f"spark.of.this.test.{key}": value for key, value in zip(keys, AWKWARD, strict=True)}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield settings
    for key in settings:
        spark.conf.unset(key)


def test_settings_are_read_as_they_are(spark: Any, awkward: dict[str, str]) -> None:
    conf = SessionConf(spark)
    assert {key: conf.get(key) for key in awkward} == awkward, "SESSION-4"
    for key in conf.keys:
        assert conf.get(key) == spark.conf.get(key), f"SESSION-4: {key}"
    assert conf.get("spark.master") == spark.sparkContext.master
    for key in ("spark.of.this.test.not", "spark.of.this.test.a", "spark.sql.ansi.enabled"):
        assert conf.get(key) is spark.conf.get(key, None) is None, f"SESSION-4: {key}"


def test_a_key_of_two_lines_is_one_key(
    spark: Any, awkward: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    conf = SessionConf(spark)
    Settings.read(conf.get, keys=conf.keys)
    assert set(awkward) <= conf.keys, "SESSION-4"
    assert "no.such.setting" not in caplog.text, "SESSION-4"


def test_the_number_of_questions_is_that_of_settings_that_are_set(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set("spark.phalanx.slots.timeout", "8s")
    asked = questions_to_the_jvm(monkeypatch)
    try:
        conf = SessionConf(spark)
        for _ in range(2):
            settings = Settings.read(conf.get, keys=conf.keys)
            preflight.check_start(conf.get, LOGGER)
        count = len(asked)
    finally:
        spark.conf.unset("spark.phalanx.slots.timeout")
    assert settings.slots_timeout == 8.0
    # The keys, by four questions; the time-out, the master, and what else the session's start has set.
    assert count <= 10, f"SESSION-3: {asked}"


def test_an_applications_own_settings_cost_a_question_each(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = questions_to_the_jvm(monkeypatch)
    get = application_conf(spark.sparkContext)
    found = [get(key) for key in ("spark.master", "spark.app.id", "spark.of.this.test.not")]
    count = len(asked)
    assert found == [spark.sparkContext.master, spark.sparkContext.applicationId, None]
    assert count <= 6, f"SESSION-3: {asked}"


def test_a_secret_of_the_session_is_not_asked_for(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    spark.conf.set("spark.hadoop.fs.s3a.secret.key", "hunter2")
    caplog.set_level(logging.DEBUG)  # py4j's, too, which says all that it is answered
    try:
        caplog.clear()
        conf = SessionConf(spark)
        settings = Settings.read(conf.get, keys=conf.keys)
        preflight.check_start(conf.get, LOGGER)
        preflight.check_slots(spark, 1, 0, LOGGER)
        texts = [caplog.text, repr(conf), repr(vars(conf)), repr(settings.values)]
    finally:
        spark.conf.unset("spark.hadoop.fs.s3a.secret.key")
    assert "Answer received" in caplog.text
    for text in texts:
        assert "hunter2" not in text, "SESSION-5"


class _Server:
    """The configuration of a client of Spark Connect, which may tell its keys; it notes what it is asked for."""

    def __init__(self, **getAll: dict[str, str]) -> None:
        self.conf = self
        self.asked: list[str] = []
        vars(self).update(getAll)

    def get(self, key: str, default: None) -> str | None:
        self.asked.append(key)
        return "8s" if key == "spark.phalanx.slots.timeout" else default


def test_a_client_of_connect_is_asked_for_each_key_once() -> None:
    for server, count in (
        (_Server(getAll={"spark.phalanx.slots.timeout": "8s"}), 1),
        (_Server(), len(_native.setting_keys())),
    ):
        conf = SessionConf(server)  # type: ignore[arg-type]
        for _ in range(2):
            assert Settings.read(conf.get, keys=conf.keys).slots_timeout == 8.0
        assert len(server.asked) == count
        assert conf.get("spark.app.name") is None
        assert server.asked[count:] == ["spark.app.name"], "what it says of its keys is not taken for all"


def test_a_session_whose_jvm_tells_no_keys_is_asked_for_each(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a host of Spark keeps Python from calling what isn't on its list."""
    silent: Any = SimpleNamespace(_jsparkSession=object(), conf=SimpleNamespace(get=spark.conf.get))
    conf = SessionConf(silent)
    assert not conf.keys
    assert conf.get("spark.master") == spark.sparkContext.master


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
