"""The settings: how they are read, and that their page says what the code does."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from phalanx.settings import SETTINGS, Setting, Settings, unknown_keys
from support import REPOSITORY

pytestmark = pytest.mark.timeout(60)
NO_CONF: dict[str, str] = {}


def one(name: str) -> Setting:
    return next(s for s in SETTINGS if s.name == name)


def test_defaults_are_those_of_the_core() -> None:
    settings = Settings.read(NO_CONF.get)
    assert settings.policy() == {
        "join_timeout": 120_000,
        "connect_timeout": 3000,
        "grace": 5000,
        "node_timeout": 30_000,
        "max_other_result_bytes": 64 << 20,
    }
    assert settings.logs() == {
        "max_file_bytes": 1 << 30,
        "max_live_lag_bytes": 64 << 20,
        "drain_timeout": 10_000,
        "live": True,
    }
    assert settings.slots_timeout == 30.0


def test_the_core_takes_every_field() -> None:
    native = pytest.importorskip("phalanx._native")
    settings = Settings.read({"spark.phalanx.grace": "7s", "spark.phalanx.logs.live": "false"}.get)
    job = json.loads(
        native.new_job(
            name="t", ranks=2, tasks=1, use_gpu=False, policy=settings.policy(), logs=settings.logs()
        )
    )
    assert job["policy"] == settings.policy()
    assert job["logs"] == settings.logs()
    assert (job["policy"]["grace"], job["logs"]["live"]) == (7000, False)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("30s", 30_000),
        ("5min", 300_000),
        ("5m", 300_000),
        ("250ms", 250),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("45", 45_000),
        (" 1.5 S ", 1500),
        (7, 7000),
    ],
)
def test_times_are_read_in_sparks_notation(text: object, millis: int) -> None:
    assert one("joinTimeout").parsed(text) == millis


@pytest.mark.parametrize(
    ("text", "size"), [("64m", 64 << 20), ("1g", 1 << 30), ("512kb", 512 << 10), ("10b", 10), ("4096", 4096)]
)
def test_sizes_are_read_in_sparks_notation(text: str, size: int) -> None:
    assert one("logs.maxFileBytes").parsed(text) == size


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("joinTimeout", "soon", "a time such as 500ms, 30s"),
        ("joinTimeout", "64m g", "a time such as"),
        ("joinTimeout", "-1s", "a time such as"),
        ("joinTimeout", "0s", "more than 0"),
        ("logs.maxFileBytes", "1 gallon", "a size such as 512k, 64m or 1g"),
        ("logs.live", "yes", "true or false"),
        ("grace", "", "a time such as"),
    ],
)
def test_a_bad_value_is_named_with_its_key_and_what_is_allowed(name: str, text: str, allowed: str) -> None:
    key = f"spark.phalanx.{name}"
    with pytest.raises(ValueError, match="has to be") as raised:
        Settings.read({key: text}.get)
    assert key in str(raised.value)
    assert repr(text) in str(raised.value)
    assert allowed in str(raised.value)


def test_arguments_go_before_the_configuration_and_that_before_the_default() -> None:
    conf = {"spark.phalanx.grace": "7s", "spark.phalanx.nodeTimeout": "9s"}
    settings = Settings.read(conf.get, overrides={"grace": "1s"})  # SET-1
    assert (settings["grace"], settings["nodeTimeout"], settings["connectTimeout"]) == (1000, 9000, 3000)
    with pytest.raises(TypeError, match="no setting 'graze'"):
        Settings.read(conf.get, overrides={"graze": "1s"})


def test_an_unknown_key_is_warned_about_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "phalanx"):
        Settings.read(NO_CONF.get, keys=["spark.phalanx.jointimeout", "spark.master", "spark.phalanx.grace"])
    assert [record.message for record in caplog.records] == [
        "spark.phalanx.jointimeout is no setting of Phalanx and has no effect; "
        "did you mean spark.phalanx.joinTimeout?"
    ]
    assert unknown_keys(["spark.phalanx.zzz"]) == [
        "spark.phalanx.zzz is no setting of Phalanx and has no effect"
    ]


def test_the_page_has_exactly_the_table() -> None:
    page = (REPOSITORY / "docs/configuration.md").read_text()
    expected = [f"| `{s.key}` | `{s.default}` | {s.unit} | {s.meaning} |" for s in SETTINGS]
    assert [line for line in page.splitlines() if line.startswith("| `spark.phalanx.")] == expected, "SET-2"


def test_a_real_session_gives_its_settings(spark: Any) -> None:
    spark.conf.set("spark.phalanx.grace", "8s")
    try:
        settings = Settings.read(lambda key: spark.conf.get(key, None))
    finally:
        spark.conf.unset("spark.phalanx.grace")
    assert settings["grace"] == 8000
