"""`phalanx submit` runs a job file on a standalone cluster: 1 + workerCount ranks of the job's own package."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from support.cluster import Standalone
from support.interpreters import environment
from support.places import ROOT
from support.programs import ONE_EXECUTOR, WARM_IF_ASKED, Program, classic_conf, eventually, gone
from support.tiers import whole

pytestmark = pytest.mark.timeout(200)

TASK = """
import argparse, os
import torch.distributed as dist
from trainer.model import answer

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--lr", type=float)
parser.add_argument("--fails", action="store_true")
args = parser.parse_args()
dist.init_process_group("gloo")
if args.fails and dist.get_rank() == 1:
    raise ValueError(f"no {answer()}")
dist.barrier()
print("TRAINED", dist.get_rank(), dist.get_world_size(), os.environ["MASTER_ADDR"], args.lr, args.job_dir, answer())
"""

JOB = """
jobId: answers
trainingInput:
  workerCount: 1
  masterType: mine
  pythonModule: trainer.task
  args: ["--lr", 0.5]
  jobDir: {folder}
  region: europe-west4
"""


def submit(
    folder: Path,
    job: str | Path,
    master: str,
    *words: str | Path,
    conf: dict[str, str] | None = None,
    **env: str,
) -> Program:
    """`phalanx submit` with the settings of a driver on this machine; its output is in `folder`/out."""
    settings = classic_conf(master) | WARM_IF_ASKED | (conf or {})
    for own in ("spark.master", "spark.jars", "spark.plugins"):
        del settings[own]
    flags = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command = [sys.executable, "-m", "phalanx", "submit", job, "--spark-master", master, *flags, *words]
    return Program(command, folder / "out", env=env)


@whole("a standalone cluster")
@pytest.mark.parametrize("fails", [False, True])
def test_a_job_file_runs_on_the_cluster_that_spark_master_names(
    fails: bool, standalone: Standalone, tmp_path: Path
) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text("def answer():\n    return 42\n")
    (package / "task.py").write_text(TASK)
    (tmp_path / "job.yaml").write_text(JOB.format(folder=tmp_path))
    (tmp_path / "machines.json").write_text('{"mine": {"cores": 1, "memory": 2}}')
    made = set(Path(tempfile.gettempdir()).glob("phalanx-submit-*"))
    words = ["--package-path", package, "--machine-types", tmp_path / "machines.json"]
    fail = ["--", "--fails"] if fails else []
    with submit(tmp_path, tmp_path / "job.yaml", standalone.url, *words, *fail) as program:
        code = program.ends(150)
        text = program.text
    assert "phalanx submit: not as the job says: region: ranks run where the Spark cluster is" in text, text
    if fails:
        assert code == 1, text
        assert "rank 1 (127.0.0.1) raised ValueError: no 42" in text
    else:
        assert code == 0, text
        for rank in range(2):
            assert f"[rank {rank}] TRAINED {rank} 2 127.0.0.1 0.5 {tmp_path} 42" in text, text
    assert set(Path(tempfile.gettempdir()).glob("phalanx-submit-*")) <= made, "LAUNCH-8"


WHERE = """
import os
from trainer import model

print("RANK", os.environ["RANK"], os.environ["ENVIRONMENT"], model.__file__)
"""


@whole("a standalone cluster")
@pytest.mark.parametrize("over", ["python", "jvm"])
def test_ranks_import_the_jobs_wheel_in_the_executors_own_environment(
    over: str, standalone: Standalone, tmp_path: Path
) -> None:
    wheel = tmp_path / "trainer-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for module, text in (("__init__", ""), ("model", ""), ("task", WHERE)):
            archive.writestr(f"trainer/{module}.py", text)
    # Here there is no ./environment: the driver has to be another Python, the command's own.
    conf = {
        "spark.phalanx.stage": over,
        "spark.archives": f"{environment(tmp_path, *([ROOT / 'python'] if over == 'python' else []))}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
    }
    words = ["--module-name", "trainer.task", "--packages", wheel, "--worker-count", "1"]
    with submit(tmp_path, "wheel", standalone.url, *words, conf=conf) as program:
        assert program.ends(150) == 0, program.text
    for rank in range(2):
        [line] = [line for line in program.text.splitlines() if f"RANK {rank} archived " in line]
        assert f"/{wheel.name}/trainer/model.py" in line, line
        assert str(wheel) not in line, "each executor has its own, as another host would"


ENDLESS = """
import os, time

print("RANK", os.getpid())
time.sleep(600)
"""


@whole("a standalone cluster")
def test_a_submission_that_is_ended_leaves_no_training(standalone: Standalone, tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("")
    (tmp_path / "trainer" / "task.py").write_text(ENDLESS)
    (tmp_path / "tmp").mkdir()
    words = ["--module-name", "trainer.task", "--package-path", tmp_path / "trainer", "--worker-count", "1"]
    conf = {"spark.executor.cores": "1", "spark.cores.max": "2"}
    with submit(
        tmp_path, "endless", standalone.url, *words, conf=conf, TMPDIR=str(tmp_path / "tmp")
    ) as program:

        def training() -> list[int]:
            return [int(pid) for pid in re.findall(r"RANK (\d+)", program.text)]

        program.waits_for("both ranks train", 60, lambda: len(training()) == 2)
        began = [*training(), *(process.pid for process in program.tree())]
        # To the command alone, as `kill` or a scheduler does; Ctrl-C reaches the others, too.
        os.kill(program.pid, signal.SIGTERM)
        assert program.ends(40) != 0, program.text
        eventually("ranks, driver and spark-submit are gone", 20, lambda: gone(began))
    assert list((tmp_path / "tmp").glob("phalanx-submit-*")) == [], "LAUNCH-8, LAUNCH-10"


RESUMED = """
from phalanx import checkpoint

print("FOUND", checkpoint.latest())
checkpoint.save("weights", 7)
"""


@whole("spark-submit")
def test_jobs_of_one_module_share_a_folder_and_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("")
    (tmp_path / "trainer" / "task.py").write_text(RESUMED)
    words = ["--module-name", "trainer.task", "--package-path", tmp_path / "trainer"]
    conf = {"spark.phalanx.checkpoint.directory": str(tmp_path / "checkpoints")}
    for name in ("cats", "dogs"):
        with submit(tmp_path, name, "local[1]", *words, conf=conf) as program:
            assert program.ends(90) == 0, program.text
            assert "[rank 0] FOUND None" in program.text, program.text
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["cats", "dogs"]


@whole("spark-submit")
@pytest.mark.parametrize("asked", [False, True])
def test_an_application_has_dynamic_allocation_only_where_the_job_asks_for_it(
    asked: bool, tmp_path: Path
) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("")
    (tmp_path / "trainer" / "task.py").write_text("print('TRAINED')")
    # As hosted platforms have it for every application.
    (tmp_path / "spark-defaults.conf").write_text("spark.dynamicAllocation.enabled true\n")
    words = ["--module-name", "trainer.task", "--package-path", tmp_path / "trainer", "--worker-count", "1"]
    conf = {"spark.dynamicAllocation.enabled": "true"} if asked else {}
    with submit(tmp_path, "job", ONE_EXECUTOR, *words, conf=conf, SPARK_CONF_DIR=str(tmp_path)) as program:
        code, text = program.ends(90), program.text
    assert code == 0, text
    assert "[rank 1] TRAINED" in text, "LAUNCH-11"
    assert ("Using dynamic allocation" in text or "ExecutorAllocationManager" in text) == asked, text
