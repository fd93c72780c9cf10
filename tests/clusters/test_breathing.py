"""Gangs of tasks on a standalone cluster: executors that come and go, two applications, copies by speculation."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import phalanx
import pytest
from support.breathing import BREATHES, PARTS
from support.cluster import Host, Standalone
from support.interpreters import bare_python
from support.own_session import in_session
from support.places import ROOT
from support.programs import Program, eventually, executors, spark_submit
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), whole("a standalone cluster")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Two hosts of two cores each, as Spark sees it: it starts no copy on the host of the first."""
    hosts = (Host(), Host("127.0.0.2"))
    standalone = Standalone(tmp_path_factory.mktemp("breathing"), hosts, cores=2)
    yield standalone
    standalone.stop()


CONF = BREATHES | {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.jars": phalanx.jar_path(),
    "spark.phalanx.grace": "1s",
}


def in_application(cluster: Standalone, code: str, conf: dict[str, str] | None = None) -> Any:
    return in_session(cluster.url, PARTS + textwrap.dedent(code), conf=CONF | (conf or {}), timeout=250)


def in_scala(cluster: Standalone, folder: Path, name: str, ranks: int, training: str) -> Program:
    """The Scala example, which trains by this text."""
    file = folder / f"{name}.py"
    file.write_text(textwrap.dedent(training))
    conf = CONF | {
        "spark.master": cluster.url,
        "spark.pyspark.python": str(bare_python(folder / f"python-{name}")),
    }
    [jar] = (ROOT / "jvm" / "examples" / "target").glob("phalanx-examples_2.13-*.jar")
    example = ["--class", "dev.phalanx.examples.TrainDigits", jar, f"--ranks={ranks}", f"--file={file}"]
    return Program(spark_submit(*example, conf=conf), folder / f"{name}.out")


@pytest.mark.parametrize("starter", ["python", "jvm"])
def test_a_gang_brings_its_executors_and_lets_them_go(cluster: Standalone, starter: str) -> None:
    answer = in_application(
        cluster,
        f"""
        before = executors()
        results = [of({starter!r}).run(train)]
        until(lambda: executors() == 0)
        results.append(of({starter!r}).run(train))
        answer = dict(before=before, results=results)
        """,
    )
    assert answer == {"before": 0, "results": [[2, 0, 2]] * 2}


@pytest.mark.parametrize("starter", ["python", "jvm"])
def test_a_copy_that_spark_starts_of_a_task_waits_and_changes_nothing(
    cluster: Standalone, starter: str
) -> None:
    answer = in_application(
        cluster,
        f"""
        import os, tempfile
        from phalanx.request import preflight
        preflight.check_start = lambda *arguments, **_: None  # it refuses this, since copies hold slots
        done = os.path.join(tempfile.mkdtemp(), "done")

        def waits(done):
            import os, time
            while not os.path.exists(done):
                time.sleep(0.1)
            return os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]

        def tasks():
            tracker = spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            return sum(stage.numActiveTasks for stage in stages if stage)

        run = of({starter!r}).start(waits, done)
        until(lambda: tasks() > 2, 120)
        time.sleep(3)  # the copy is with the hub by then
        held = tasks()
        open(done, "w").close()
        answer = dict(held=held, result=run.result(60))
        until(lambda: not jobs() and tasks() == 0)
        """,
        {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.speculation.task.duration.threshold": "1s",
        },
    )
    assert answer["held"] > 2, "DRIVER-50"
    assert answer["result"] == ["0", "0"], "DRIVER-50"


def test_of_two_applications_the_second_gathers_once_the_first_lets_its_executors_go(
    cluster: Standalone, tmp_path: Path
) -> None:
    def application(name: str, seconds: int) -> Any:
        code = f"""
        import os

        def takes_its_time(folder):
            import os, time
            open(os.path.join(folder, {name!r} + os.environ["RANK"]), "w").close()
            time.sleep({seconds})
            return os.environ["WORLD_SIZE"]

        # Of four slots each wants three.
        distributor = phalanx.TorchDistributor(num_processes=3, local_mode=False, use_gpu=False)
        answer = distributor.run(takes_its_time, {str(tmp_path)!r})
        """
        return in_application(cluster, code)

    with ThreadPoolExecutor(2) as both:
        first = both.submit(application, "first", 15)
        eventually("the first has gathered", 90, lambda: len(list(tmp_path.iterdir())) == 3)
        second = both.submit(application, "second", 0)
        assert (first.result(200), second.result(200)) == ("3", "3")
    assert len(list(tmp_path.iterdir())) == 6


def test_of_two_scala_applications_the_second_waits_also_where_an_executor_of_it_goes_meanwhile(
    cluster: Standalone, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    trains = f"""
        import os, time
        import phalanx

        open(os.path.join({str(marks)!r}, os.environ["RANK"]), "w").close()
        while not os.path.exists({str(tmp_path / "release")!r}):
            time.sleep(0.1)
        phalanx.set_result(os.environ["WORLD_SIZE"])
        """
    counts = "import os, phalanx\nphalanx.set_result(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"

    def running() -> dict[int, Any]:
        return {each.pid: each for worker in cluster.workers for each in executors(worker.pid)}

    # Of four slots the first takes three.
    with in_scala(cluster, tmp_path, "first", 3, trains) as first:
        eventually("the first has gathered", 120, lambda: len(list(marks.iterdir())) == 3)
        before = set(running())
        with in_scala(cluster, tmp_path, "second", 2, counts) as second:
            [came] = eventually("an executor came for the second", 90, lambda: set(running()) - before)
            time.sleep(10)  # its task waits at the hub by then
            assert set(running()) - before == {came}, "there is room for no more"
            running()[came].kill()
            eventually("another came", 60, lambda: set(running()) - before - {came})
            time.sleep(5)
            assert "result: " not in second.text
            (tmp_path / "release").touch()
            assert first.ends(60) == 0, first.text
            assert second.ends(90) == 0, second.text
        assert 'result: "3"' in first.text
        assert 'result: "0"' in second.text, "DRIVER-31: it needed no restart"
    eventually("no executor is left", 60, lambda: not running())
