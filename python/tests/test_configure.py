"""The jar and the plugin beside those of the user, wherever these are listed, and what is said when it is too late."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx.spark import configure as room
from phalanx.spark import jar

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not os.path.exists(jar.expected_path()), reason="the jar is not built; `make build` does it"
    ),
]
OURS = jar.expected_path()


class Builder:
    """Stands for a builder of sessions."""

    def __init__(self, **options: str) -> None:
        self._options = {f"spark.{name}": value for name, value in options.items()}

    def config(self, key: str, value: str) -> Builder:
        self._options[key] = value
        return self


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a process finds it that has started nothing yet."""
    monkeypatch.setattr(room, "_session", lambda: None)
    monkeypatch.setattr(room, "_started_with", lambda: None)
    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def configured(**options: str) -> dict[str, Any]:
    builder: Any = Builder(**options)
    assert phalanx.configure(builder) is builder
    found: dict[str, Any] = builder._options
    return found


def test_a_builder_without_lists_gets_jar_and_plugin() -> None:
    assert configured() == {"spark.jars": OURS, "spark.plugins": jar.PLUGIN}


def test_the_users_lists_stay_wherever_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = {"spark.jars": f"a.jar,b.jar,{OURS}", "spark.plugins": f"their.Plugin,{jar.PLUGIN}"}
    assert configured(jars="a.jar, b.jar", plugins="their.Plugin") == both, "SESSION-1"
    assert configured(jars=both["spark.jars"], plugins=both["spark.plugins"]) == both, "twice is as once"

    defaults = "# spark.jars x\nspark.jars=a.jar,b.jar\n  spark.plugins\ttheir.Plugin  \nspark.jarsx 1\n"
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    assert configured() == both, "SESSION-1"
    # A builder's own list is instead of that of the file, as it is without Phalanx.
    assert configured(jars="c.jar")["spark.jars"] == f"c.jar,{OURS}"
    other = tmp_path / "other file"
    other.write_text("spark.jars: d.jar")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {shlex.quote(str(other))} pyspark-shell")
    assert configured() == {"spark.jars": f"d.jar,{OURS}", "spark.plugins": jar.PLUGIN}


@pytest.mark.parametrize(
    "defaults",
    [
        "spark.jars a.jar,\\\n  b.jar\nspark.plugins \\u0074heir.Plugin",
        "spark.jars\\u0009 x\nspark.jars=a.jar\\\r\n,b.jar\r\n! spark.plugins x\r\nspark\\.plugins: their\\.Plugin",
    ],
)
def test_the_file_of_defaults_is_read_as_spark_reads_it(tmp_path: Path, defaults: str) -> None:
    (tmp_path / "spark-defaults.conf").write_bytes(defaults.encode())
    both = {"spark.jars": f"a.jar,b.jar,{OURS}", "spark.plugins": f"their.Plugin,{jar.PLUGIN}"}
    assert configured() == both, "SESSION-9"


def test_a_file_that_spark_can_not_read_is_for_spark_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.jars \\u00zz")
    assert configured() == {"spark.jars": OURS, "spark.plugins": jar.PLUGIN}


def test_options_of_the_command_line_are_read_as_spark_reads_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.jars z.jar\nspark.plugins default.Plugin")
    other = tmp_path / "other.conf"
    other.write_text("spark.jars d.jar")
    for given, jars, plugins in [
        (f"--properties-file={other}", "d.jar", None),
        (f"--properties-file={other} --load-spark-defaults", "d.jar", "default.Plugin"),
        ("--jars=a.jar --conf=spark.plugins=their.Plugin", "a.jar", "their.Plugin"),
        ("--conf=spark.jars=a.jar -c spark.plugins=a=b", "a.jar", "a=b"),
    ]:
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{given} pyspark-shell")
        assert configured() == {
            "spark.jars": f"{jars},{OURS}",
            "spark.plugins": ",".join(filter(None, [plugins, jar.PLUGIN])),
        }, f"SESSION-9: {given}"


def test_lists_of_the_command_line_are_joined_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    given = "--conf spark.plugins=their.Plugin --jars a.jar --name 'my app' pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
    jars, plugins = f"a.jar,{OURS}", f"their.Plugin,{jar.PLUGIN}"
    assert configured(jars="overruled.jar") == {"spark.jars": jars, "spark.plugins": plugins}
    words = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
    assert words[-1] == "pyspark-shell"
    assert words[:-1] == [*shlex.split(given)[:-1], "--jars", jars, "--conf", f"spark.plugins={plugins}"]


def test_a_client_of_spark_connect_is_told_that_it_is_the_servers_matter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert configured(remote="sc://there") == {"spark.remote": "sc://there"}
    assert "start the server with phalanx.spark_conf()" in caplog.text, "SESSION-2"
