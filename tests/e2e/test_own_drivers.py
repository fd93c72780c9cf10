"""Drivers of a test's own: with files, with the user's own lists of jars, with GPUs, with too few slots."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx.spark import jar
from support.own_session import in_session
from support.places import PYTHON, ROOT
from support.spark_files import shipped
from support.tiers import whole

pytestmark = pytest.mark.timeout(150)


@whole("a cluster of its own")
def test_a_real_cluster_is_waited_for_and_its_limit_is_known() -> None:
    answer = in_session(
        "local-cluster[2,2,1024]",
        """
        import logging, time
        from phalanx.request import preflight
        began = time.monotonic()
        preflight.check_slots(spark, 2, 90, logging.getLogger())
        answer = {"waited": time.monotonic() - began}
        try:
            preflight.check_slots(spark, 3, 90, logging.getLogger())
        except RuntimeError as problem:
            answer["refused"] = str(problem)
        """,
        conf={"spark.task.cpus": "2", "spark.executor.memory": "512m"},
        timeout=140,
    )
    assert "there are never more than 2" in answer["refused"]


@whole("a real driver")
def test_a_real_session_with_a_discovery_script(tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["1", "0", "MIG-1c2d"]}'\n""")
    script.chmod(0o755)
    answer = in_session(
        "local[2]",
        """
        import logging, os, sys
        import phalanx, phalanx.distributor as module
        from support.fakes import FakeNative, FakeRun
        phalanx._native = FakeNative()
        new_run, module._new_run = module._new_run, FakeRun
        logging.basicConfig(level=logging.CRITICAL)
        os.environ["CUDA_VISIBLE_DEVICES"] = "4,5"
        before = dict(os.environ)
        local = phalanx.TorchDistributor(num_processes=8)
        one = phalanx.TorchDistributor()
        first, second = one.start(print), one.start(print)
        FakeRun.outcome = lambda run: run.fields["lease"].gpus
        try:
            local.run(print)
        except RuntimeError as problem:
            refused = str(problem)
        first.fields["lease"].release()
        second.fields["lease"].release()
        answer = {
            "lowered": local.num_processes,
            "tasks": local.num_tasks,
            "concurrent": [first.fields["lease"].gpus, second.fields["lease"].gpus],
            "refused": refused,
            "all": local.run(print),
            "distributed": phalanx.TorchDistributor(2, local_mode=False, use_gpu=False).run(print),
            "untouched": dict(os.environ) == before,
        }
        try:
            phalanx.TorchDistributor(2, local_mode=False)
        except RuntimeError as problem:
            answer["task"] = str(problem)
        spark.conf.set("spark.task.resource.gpu.amount", "1")
        answer["local master"] = phalanx.TorchDistributor(2, local_mode=False).run(print)
        phalanx._native, module._new_run = sys.modules["phalanx._native"], new_run
        answer["started"] = [one.start(os.getenv, "CUDA_VISIBLE_DEVICES").result() for _ in range(2)]
        """,
        conf={
            "spark.driver.resource.gpu.amount": "3",
            "spark.driver.resource.gpu.discoveryScript": str(script),
        },
    )
    assert (answer["lowered"], answer["tasks"]) == (3, 3), "as pyspark has them in local mode"
    assert answer["concurrent"] == [["5"], ["4"]]
    assert "needs 3 GPUs; the driver has 3, of which 2 are in use" in answer["refused"]
    assert answer["all"] == ["5", "4", "MIG-1c2d"]
    assert answer["distributed"] == []
    assert answer["untouched"], "D7: the caller's environment is never changed"
    assert "was unset, so gpu usage is unavailable" in answer["task"]
    assert answer["local master"] == ["5", "4"]
    assert answer["started"] == ["5"] * 2, "a run that is over has given its GPU back"


needs_jar = pytest.mark.skipif(
    not os.path.exists(jar.expected_path()),
    reason="the jar is not built; `make build` does it",
)


@whole("a real driver")
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
    assert in_session("local[2]", text, conf=conf, timeout=150) == ["JvmStage", ranks, None], (
        "STAGE-3, STAGE-5"
    )


@whole("without the jar")
@pytest.mark.parametrize("over", ["python", "local"])
def test_files_of_a_session_reach_its_ranks(tmp_path: Path, over: str) -> None:
    shipped(tmp_path / "at_the_caller")
    text = f"""
        import os, sys
        from phalanx import TorchDistributor

        def train():
            import os, sys
            import of_py, of_zip
            from pyspark import SparkFiles
            inside = [os.path.dirname(m.__file__) for m in (of_py, of_zip)]
            root = SparkFiles.getRootDirectory()
            return of_py.WHERE, of_zip.WHERE, inside == [root, os.path.join(root, "first.zip")], open(
                SparkFiles.get("data.txt")
            ).read()

        folder = {str(tmp_path / "at_the_caller")!r}
        spark.sparkContext.addFile(os.path.join(folder, "data.txt"))
        spark.sparkContext.addPyFile(os.path.join(folder, "of_py.py"))
        spark.sparkContext.addPyFile(os.path.join(folder, "first.zip"))
        # in a process of its own, the driver's path has them as well
        sys.path[:] = [p for p in sys.path if "userFiles" not in p]
        distributor = TorchDistributor(num_processes=1, local_mode={over == "local"}, use_gpu=False)
        answer = distributor.run(train)
    """
    assert in_session("local[1]", text) == ["py", "first.zip", True, "forty-two"]
    assert sys.modules.get("of_zip") is None


OURS = jar.expected_path()


def run(program: str, folder: Path, *command: str, **env: str) -> Any:
    """What a program prints as its answer that has a process, and a driver, of its own."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [*(command or [sys.executable]), str(path)],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}:{PYTHON}"} | env,
    )
    assert done.returncode == 0, done.stderr
    [answer] = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    # `spark-submit` puts a program's stderr into its stdout.
    return json.loads(answer.removeprefix("ANSWER ")), done.stdout + done.stderr


TRAINS = """
    import json
    import phalanx
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.master", "local[1]")
    builder = builder.config("spark.phalanx.warm.enabled", "false")
    spark = phalanx.configure(builder).getOrCreate()
    distributor = phalanx.TorchDistributor(1, local_mode=False, use_gpu=False)
    distributor.run(print)
    answer = [type(distributor.last_run._stage).__name__, spark.sparkContext.getConf().get("spark.plugins")]
    answer.append(spark._jvm.Thread.currentThread().getContextClassLoader().getResource("theirs") is not None)
    phalanx.configure(SparkSession.builder)
    spark.stop()
    print("ANSWER", json.dumps(answer))
"""


@whole("lists of a real driver")
@pytest.mark.parametrize("listed", ["defaults", "command line"])
def test_a_real_driver_has_both_jars_and_takes_the_jvm_stage(tmp_path: Path, listed: str) -> None:
    theirs = tmp_path / "theirs.jar"
    with zipfile.ZipFile(theirs, "w") as archive:
        archive.writestr("theirs", "")
    args = "pyspark-shell"
    if listed == "defaults":
        (tmp_path / "spark-defaults.conf").write_text(f"spark.jars {theirs}\n")
    else:
        args = f"--jars {theirs} pyspark-shell"
    answer, said = run(TRAINS, tmp_path, PYSPARK_SUBMIT_ARGS=args, SPARK_CONF_DIR=str(tmp_path))
    assert answer == ["JvmStage", jar.PLUGIN, True], "SESSION-1"
    assert "started before phalanx.configure was called" not in said, (
        "a session that has both is told nothing"
    )


@whole("over the python stage")
def test_an_application_that_was_started_without_the_jar_is_told_so_and_goes_on(tmp_path: Path) -> None:
    from support.programs import spark_home

    answer, said = run(TRAINS, tmp_path, str(spark_home() / "bin" / "spark-submit"))
    assert answer == ["PythonStage", None, False], "SESSION-2"
    assert f"spark-submit --jars {OURS} --conf spark.plugins={jar.PLUGIN}" in said, "SESSION-2"
    assert "This session started before phalanx.configure was called" in said, "SESSION-2"


@whole("the jar from elsewhere")
def test_an_application_that_has_the_jar_by_another_name_is_not_told_that_it_lacks_it(tmp_path: Path) -> None:
    from support.programs import spark_home

    renamed = tmp_path / "theirs.jar"
    shutil.copy(OURS, renamed)
    submit = [str(spark_home() / "bin" / "spark-submit"), "--driver-class-path", str(renamed)]
    answer, said = run(TRAINS, tmp_path, *submit)
    # Executors may lack it when they start, and would fail of the plugin.
    assert answer == ["JvmStage", None, False], "SESSION-2"
    assert "was started without Phalanx's jar" not in said, "SESSION-2"
    assert "it has the jar, but spark.plugins lacks" in said, "SESSION-2"


@whole("a cluster of its own")
def test_a_rank_that_the_limit_of_sparks_python_workers_is_too_small_for_names_it() -> None:
    def under_the_limit(code: str) -> Any:
        conf = {"spark.executor.pyspark.memory": "800m", "spark.phalanx.stage": "python"}
        return in_session(
            "local-cluster[1,1,1024]", "import phalanx\n" + textwrap.dedent(code), conf=conf, timeout=70
        )

    failure = under_the_limit("""
        def train():
            import torch

        try:
            phalanx.TorchDistributor(1, local_mode=False, use_gpu=False).run(train)
        except phalanx.TrainingError as problem:
            answer = str(problem).splitlines()[0]
        """)
    # A worker that has had a run may have no room for another thread.
    found = under_the_limit("""
        report = phalanx.doctor(spark, num_processes=1, use_gpu=False, timeout=60)
        answer = {one.check: [one.level, one.means, one.do] for one in report.findings if one.level != "ok"}
        """)
    limit = "RLIMIT_AS, which spark.executor.pyspark.memory sets"
    assert "failed to map segment" in failure, "as glibc has it"
    assert limit in failure, "RANK-38"
    for check in ("torch", "address space"):
        level, means, do = found[check]
        assert (level, limit in means, "spark.executor.memoryOverhead" in do) == ("error", True, True), means


@whole("a cluster of its own")
@pytest.mark.parametrize("way", ["rdd", "dataframe"])
def test_a_training_that_spark_ends_since_its_worker_is_silent_was_warned_of_and_says_why(way: str) -> None:
    from pyspark import __version__

    if tuple(map(int, __version__.split(".")[:2])) < (4, 1):
        pytest.skip("Spark ends silent workers from 4.1 on")
    answer = in_session(
        "local-cluster[1,1,1024]",
        """
        import logging, phalanx

        class Kept(logging.Handler):
            def emit(self, record):
                said.append(record.getMessage())

        said = []
        logging.getLogger("phalanx").addHandler(Kept(logging.WARNING))

        def train():
            import time

            time.sleep(60)

        answer = {}
        distributor = phalanx.TorchDistributor(1, local_mode=False, use_gpu=False, warm=False)
        try:
            if WAY == "rdd":
                distributor.run(train)
            else:
                distributor._train_on_dataframe(train, spark.range(4).repartition(1))
        except phalanx.TrainingError as problem:
            answer = {"failure": str(problem).splitlines()[0], "kind": problem.kind}
        answer["said"] = said
        """.replace("WAY", repr(way)),
        conf={
            "spark.python.worker.killOnIdleTimeout": "true",
            "spark.python.worker.idleTimeoutSeconds": "10",
            "spark.phalanx.stage": "python",
        },
        timeout=140,
    )
    # A DataFrame's setting may fall back on that of RDDs by itself.
    key = r"spark\.(python\.worker|sql\.execution\.pyspark\.udf)\.idleTimeoutSeconds"
    assert re.search(rf"longer than {key}=10", "\n".join(answer["said"])), "STAGE-8"
    assert "terminated due to idle timeout" in answer["failure"], answer
