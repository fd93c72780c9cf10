"""Which stage a run takes and what is said of it; what the jvm stage hands to the JVM."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import phalanx
import pytest
from phalanx import jar, jvm_stage
from phalanx.jvm_stage import DIRECT_BYTES, JvmStage, uses_jvm, why_not
from support import in_session

pytestmark = pytest.mark.timeout(200)

needs_jar = pytest.mark.skipif(
    not os.path.exists(os.path.join(os.path.dirname(phalanx.__file__), "jars", jar.NAME)),
    reason="the jar is not built; `make build` does it",
)


class Runner:
    """Stands for BarrierRunner, and for the classic session and context around it."""

    def __init__(self, folder: Path | None = None, version: str = phalanx.__version__) -> None:
        self._version = version
        self._jsparkSession = self._jsc = self.sparkContext = self
        self._temp_dir = str(folder)
        self.tags: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.pythonExec, self.environment, self._python_includes = "python9", {"A": "b"}, ["x.zip"]
        self.cancelJobsWithTag = self.addJobTag = self.tags.append

    def version(self) -> str:
        if not self._version:
            raise RuntimeError("no glibc")
        return self._version

    def sc(self) -> str:
        return "the context"

    def runPython(self, *arguments: Any) -> list[bytearray]:
        self.calls.append(arguments)
        payload = arguments[2]
        if isinstance(payload, str):
            assert os.stat(payload).st_mode & 0o777 == 0o600
            self.calls.append((Path(payload).read_bytes(), payload))
        return [bytearray(b"a report")]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    made = Runner(tmp_path)
    monkeypatch.setattr(jvm_stage, "_runner", lambda context: made)
    monkeypatch.setattr(JvmStage, "_inheriting", lambda self, target: target)
    return made


def stage_of(runner: Runner, payload: bytes) -> JvmStage:
    return JvmStage(
        spark=runner,  # type: ignore[arg-type]
        job=b"job",
        payload=payload,
        name="train",
        num_tasks=4,
        num_ranks=8,
        slots_timeout=1.0,
        local_gpus=["0"],
    )


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
    ], "JVM-2"


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (
            "0.0.9",
            f"the jar on the driver's class path has version 0.0.9 and this package {phalanx.__version__}; ",
        ),
        ("", "the jar on the driver's class path can't be used: no glibc"),
    ],
)
def test_a_jar_that_does_not_fit_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, problem: str
) -> None:
    session: Any = Runner(version=version)
    monkeypatch.setattr(jvm_stage, "_runner", lambda context: session)
    with caplog.at_level(logging.INFO, "phalanx"):
        assert not uses_jvm(session, "auto", dataframe=False), "JVM-1"
    assert f"Phalanx takes the python stage, because {problem}" in caplog.text
    with pytest.raises(RuntimeError) as refused:
        uses_jvm(session, "jvm", dataframe=False)
    assert str(refused.value).startswith(f"spark.phalanx.stage is jvm, but {problem}")


def test_a_session_without_the_jar_or_without_a_jvm_says_so(spark: Any) -> None:
    problem = why_not(spark)
    assert problem is not None
    assert problem.startswith("the jar is not on the driver's class path; ")
    assert "phalanx.spark_conf()" in problem
    remote: Any = SimpleNamespace()
    assert "Spark Connect" in str(why_not(remote))


def test_what_the_jvm_is_handed(runner: Runner) -> None:
    reports: list[bytes] = []
    hub: Any = SimpleNamespace(address="h:1", token=b"secret", node_report=reports.append)
    stage = stage_of(runner, b"payload")
    stage._run(hub, 2)
    description = "Phalanx: train, 8 ranks"
    expected = (
        "the context",
        b"job",
        b"payload",
        "h:1",
        b"secret",
        2,
        description,
        ["0"],
        "python9",
        {"A": "b"},
    )
    assert runner.calls == [(*expected, ["x.zip"])]
    assert reports == [b"a report"]
    stage.cancel()
    assert len(runner.tags) == 2
    assert len(set(runner.tags)) == 1, "cancelled by the tag that it began with"


def test_a_large_payload_goes_through_a_file_that_is_gone_afterwards(runner: Runner, tmp_path: Path) -> None:
    hub: Any = SimpleNamespace(address="h:1", token=b"secret", node_report=lambda report: None)
    payload = bytes(range(256)) * (DIRECT_BYTES // 256) + b"+"
    stage_of(runner, payload)._run(hub, 0)
    assert runner.calls[1][0] == payload
    assert Path(runner.calls[1][1]).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_settings_of_a_new_user_name_the_jar_or_say_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jar, "__file__", str(tmp_path / "jar.py"))
    with pytest.raises(FileNotFoundError, match=r"built without the jar \(.*\); `make build` in a clone"):
        phalanx.spark_conf()
    (tmp_path / "jars").mkdir()
    path = tmp_path / "jars" / f"phalanx-spark_2.13-{phalanx.__version__}.jar"
    path.touch()
    assert phalanx.jar_path() == str(path)
    assert phalanx.spark_conf() == {
        "spark.jars": str(path),
        "spark.plugins": "dev.phalanx.spark.PhalanxPlugin",
    }


@needs_jar
def test_a_real_jvm_runs_ranks_with_files_and_a_large_payload(tmp_path: Path) -> None:
    (tmp_path / "of_py.py").write_text("WHERE = 'py'")
    text = f"""
        import sys
        from phalanx import TorchDistributor

        def train(data):
            import of_py
            from pyspark import SparkFiles
            return len(data), of_py.WHERE, SparkFiles.get("of_py.py") == of_py.__file__

        spark.sparkContext.addPyFile({str(tmp_path / "of_py.py")!r})
        sys.path[:] = [p for p in sys.path if "userFiles" not in p]
        distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
        distributor.run(train, bytes(200 << 20))
        answer = [type(distributor.last_run._stage).__name__, distributor.last_run.results()]
        answer.append(spark.sparkContext.getLocalProperty("spark.job.description"))
    """
    conf = {**phalanx.spark_conf(), "spark.phalanx.stage": "jvm"}
    ranks = [[200 << 20, "py", True]] * 2
    assert in_session("local[2]", text, conf=conf, timeout=150) == ["JvmStage", ranks, None], "JVM-3, STAGE-2"
