"""Which stage a run takes and what is said of it; what the jvm stage hands to the JVM."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import phalanx
import pytest
from phalanx import _native
from phalanx.spark import driver_jvm, jar
from phalanx.stages import choice, jvm
from phalanx.stages.choice import uses_jvm
from phalanx.stages.jvm import DIRECT_BYTES, JvmStage
from support.fake_run import request_of

pytestmark = pytest.mark.timeout(200)


class Runner:
    """Stands for BarrierRunner, and for the classic session and context around it."""

    def __init__(
        self, folder: Path | None = None, version: str = phalanx.__version__, problem: str | None = None
    ) -> None:
        self._version, self._problem = version, problem
        self._jsparkSession = self._jsc = self.sparkContext = self
        self._temp_dir = str(folder)
        self.tags: list[str] = []
        self.left: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.pythonExec, self.environment, self._python_includes = "python9", {"A": "b"}, ["x.zip"]
        self.addJobTag = self.tags.append
        self.removeJobTag = self.left.append

    def version(self) -> str:
        if not self._version:
            raise RuntimeError("no glibc")
        return self._version

    def problem(self) -> str | None:
        return self._problem

    def sc(self) -> str:
        return "the context"

    def cancel(self, _context: str, tag: str) -> None:
        self.tags.append(tag)

    def runPython(self, *arguments: Any) -> None:
        self.calls.append(arguments)
        payload = arguments[3]
        if isinstance(payload, str):
            assert os.stat(payload).st_mode & 0o777 == 0o600
            self.calls.append((Path(payload).read_bytes(), payload))


def has(monkeypatch: pytest.MonkeyPatch, runner: Any) -> None:
    """The driver's JVM has this class BarrierRunner."""
    for module in (driver_jvm, choice, jvm):
        monkeypatch.setattr(module, "barrier_runner", lambda context: runner)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    made = Runner(tmp_path)
    has(monkeypatch, made)
    monkeypatch.setattr(JvmStage, "_inheriting", lambda self, target: target)
    return made


def stage_of(runner: Runner, payload: bytes) -> JvmStage:
    return JvmStage(
        request_of(_native.Job(name="train", ranks=8, tasks=4, use_gpu=False, settings={}), payload=payload),
        spark=runner,  # type: ignore[arg-type]
        local_gpus=["0"],
    )


def node_spec_into(asked: list[Any]) -> Any:
    def node_spec(attempt: int, **fields: Any) -> bytes:
        asked.append((attempt, fields))
        return b"the spec"

    return node_spec


def test_the_jvm_stage_is_taken_where_the_jar_is(runner: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "phalanx"):
        assert uses_jvm(runner, "auto", dataframe=False)
        assert uses_jvm(runner, "jvm", dataframe=False)
        assert not uses_jvm(runner, "python", dataframe=False)
        assert not uses_jvm(runner, "jvm", dataframe=True)
    because = "Phalanx takes the {} stage, because {}".format
    jar = because("jvm", "the jar is on the driver's class path")
    assert [record.message for record in caplog.records] == [
        jar,
        jar,
        because("python", "spark.phalanx.stage is python"),
        because("python", "a DataFrame's partitions reach the ranks through Spark's Python workers"),
    ], "STAGE-2"


@pytest.mark.parametrize(
    ("runner", "problem"),
    [
        (
            Runner(version="0.0.9"),
            "the jar on the driver's class path has version 0.0.9, but this package has "
            f"{phalanx.__version__}; ",
        ),
        (Runner(version=""), "the jar on the driver's class path can't be used: no glibc"),
        (
            Runner(problem="it is built for Scala 2.13"),
            "the jar on the driver's class path can't be used: it is built for Scala 2.13",
        ),
    ],
)
def test_a_jar_that_does_not_fit_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, runner: Any, problem: str
) -> None:
    session = runner
    has(monkeypatch, session)
    with caplog.at_level(logging.INFO, "phalanx"):
        assert not uses_jvm(session, "auto", dataframe=False), "STAGE-1"
    [record] = caplog.records
    assert record.message.startswith(f"Phalanx takes the python stage, because {problem}")
    assert record.levelno == logging.WARNING, "STAGE-2"
    with pytest.raises(RuntimeError) as refused:
        uses_jvm(session, "jvm", dataframe=False)
    assert str(refused.value).startswith(f"spark.phalanx.stage is jvm, but {problem}")


def test_what_the_jvm_is_handed(runner: Runner) -> None:
    asked: list[Any] = []
    hub: Any = SimpleNamespace(node_spec=node_spec_into(asked))
    stage = stage_of(runner, b"payload")
    stage._run(hub, 2)
    assert runner.calls == [
        ("the context", 4, b"the spec", b"payload", "Phalanx: train, 8 ranks", "barrier", 4, 0)
    ]
    env = {"A": "b", "PHALANX_PY_FILES": "x.zip"}
    assert asked == [(2, {"python": "python9", "env": env, "local_gpus": ["0"]})]
    stage.cancel()
    assert len(runner.tags) == 2
    assert len(set(runner.tags)) == 1, "cancelled by the tag that it began with"
    assert runner.left == runner.tags[:1], "the next attempt has another"


def test_a_large_payload_goes_through_a_file_that_is_gone_afterwards(runner: Runner, tmp_path: Path) -> None:
    hub: Any = SimpleNamespace(node_spec=node_spec_into([]))
    payload = bytes(range(256)) * (DIRECT_BYTES // 256) + b"+"
    stage_of(runner, payload)._run(hub, 0)
    assert runner.calls[1][0] == payload
    assert Path(runner.calls[1][1]).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_settings_of_a_new_user_name_the_jar_or_say_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jar, "_PACKAGE", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"without the jar for this Spark.s Scala \(.*\); `make jars` in a clone"
    ):
        phalanx.spark_conf()
    (tmp_path / "jars").mkdir()
    path = tmp_path / "jars" / f"phalanx-spark_2.13-{phalanx.__version__}.jar"
    path.touch()
    assert phalanx.jar_path() == str(path)
    assert phalanx.spark_conf() == {
        "spark.jars": str(path),
        "spark.plugins": "dev.phalanx.spark.PhalanxPlugin",
    }
