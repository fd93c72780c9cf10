"""What is made of Spark's version: which is refused, which jar it takes, what a thread inherits."""

from __future__ import annotations

import functools
import importlib.machinery
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import phalanx
import pyspark
import pytest
from phalanx import TorchDistributor
from phalanx.request import run_profile
from phalanx.spark import versions as spark_version
from phalanx.spark.jar import expected_path


def test_a_pyspark_that_is_too_old_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.4.4")
    with pytest.raises(RuntimeError) as refused:
        TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    assert str(refused.value) == "Phalanx needs Spark 3.5 or later, and this pyspark is 3.4.4", "SESSION-8"


@pytest.mark.parametrize("version", ["3.5.0", "4.0.0.dev1", "4.3.0", "10.0.0", "of my own"])
def test_every_other_is_not(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    spark_version.check_pyspark()


def test_a_server_of_spark_connect_that_is_too_old_is_refused() -> None:
    client: Any = SimpleNamespace(version="3.4.4")
    with pytest.raises(RuntimeError, match=r"^Phalanx needs .*, and the server of Spark Connect is 3\.4\.4$"):
        spark_version.check_server(client)
    classic: Any = SimpleNamespace(_jsparkSession=None)
    spark_version.check_server(classic)


@pytest.mark.parametrize(
    ("server", "own", "common"),
    [("4.3.0", "3.5.9", "3.5.9"), ("3.5.9", "4.3.0", "3.5.9"), ("4.1.2-vendor", "4.1.0", "4.1.2-vendor")],
)
def test_a_client_can_do_what_it_and_its_server_can(
    monkeypatch: pytest.MonkeyPatch, server: str, own: str, common: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", own)
    client: Any = SimpleNamespace(version=server)
    assert spark_version.version_of(client) == common, "SESSION-8"
    client.conf = {"spark.master": "spark://x:7077"}
    wants = functools.partial(
        run_profile.taken_by, client, {"spark.phalanx.taskCpus": "2"}, of_dataframe=True
    )
    if common == "3.5.9":
        with pytest.raises(
            RuntimeError, match=r"for which Spark 3\.5\.9 knows no such thing; unset it, or take"
        ):
            wants(use_gpu=False, local_mode=False)
    else:
        assert wants(use_gpu=False, local_mode=False) == (2, 0, None)


@pytest.mark.parametrize(
    ("core", "jar"), [("spark-core_2.12-3.5.9.jar", "2.12"), ("spark-core_2.13-3.5.9.jar", "2.13")]
)
def test_the_jar_is_that_of_the_sparks_scala(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, core: str, jar: str
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / core).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert Path(expected_path()).name == f"phalanx-spark_{jar}-{phalanx.__version__}.jar"


@pytest.mark.parametrize(("version", "scala"), [("3.5.9", "2.12"), ("4.0.5", "2.13")])
def test_without_jars_it_is_what_such_a_pyspark_is_built_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, scala: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    origin = importlib.machinery.ModuleSpec("pyspark", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(spark_version.importlib.util, "find_spec", lambda name: origin)
    monkeypatch.setattr(pyspark, "__version__", version)
    assert spark_version.scala_version() == scala


def test_a_thread_has_the_tags_that_its_client_of_spark_3_5_had(monkeypatch: pytest.MonkeyPatch) -> None:
    tags, told = {"a", "b"}, []
    client: Any = SimpleNamespace(getTags=lambda: tags, addTag=told.append)
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    target = spark_version.inheriting(client, lambda: told.append("run"))
    tags.clear()
    target()
    assert told == ["a", "b", "run"], "STAGE-5"


def test_no_other_module_asks_for_a_version() -> None:
    package = Path(phalanx.__file__).parent
    asking = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "pyspark.__version__" in path.read_text()
    ]
    assert asking == ["spark/versions.py"], "SESSION-7"
