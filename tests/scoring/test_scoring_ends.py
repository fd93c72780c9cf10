"""What is left of models when drivers end, and how much memory they take: each test has drivers of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.own_session import in_session
from support.places import PYTHON, ROOT
from support.programs import classic_conf, eventually, gone
from support.tiers import whole

pytestmark = pytest.mark.timeout(240)

STAGES = ["jvm", "python"]
SCORES = """
    import os, sys, time
    sys.path.insert(0, os.path.join({root!r}, "tests", "scoring"))
    import models
    import phalanx

    spark.conf.set("spark.phalanx.stage", {over!r})

    def scored(model, rows=40, batch_size=4):
        frame = spark.range(0, rows, 1, 2).selectExpr("id", "double(id) as x")
        return phalanx.predict(frame, model, inputs="x", outputs="y double, process long", batch_size=batch_size)
"""


def conf_of(master: str) -> dict[str, str]:
    return {key: value for key, value in classic_conf(master).items() if key != "spark.master"}


def scoring(over: str, code: str) -> str:
    return textwrap.dedent(SCORES.format(root=str(ROOT), over=over)) + textwrap.dedent(code)


@contextmanager
def driver(
    over: str, folder: Path, master: str = "local-cluster[1,2,1024]"
) -> Iterator[subprocess.Popen[str]]:
    """A driver whose model says its process, again and again, in a file of the folder."""
    program = f"""
from pyspark.sql import SparkSession
builder = SparkSession.builder.master({master!r})
for key, value in {conf_of(master)!r}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
""" + scoring(over, f"scored(models.Named({str(folder)!r})).collect()\n")  # fmt: skip
    path = os.pathsep.join([str(ROOT / "tests"), str(PYTHON)])
    env = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    process = subprocess.Popen([sys.executable, "-c", program], text=True, env=env, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def models_of(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir() if file.name.isdigit()]


@pytest.mark.parametrize("over", ["jvm", pytest.param("python", marks=whole("over Python workers"))])
def test_a_drivers_models_end_with_it_and_no_others(over: str, tmp_path: Path) -> None:
    folders = [tmp_path / "killed", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    with driver(over, folders[0]) as killed, driver(over, folders[1]):
        eventually("models of both compute", 120, lambda: all(models_of(folder) for folder in folders))
        ended, others = map(models_of, folders)
        assert not set(ended) & set(others), "each application has its own"
        os.kill(killed.pid, signal.SIGKILL)
        eventually("SCORE-3: models end with their driver", 30, lambda: gone(ended))
        assert not gone(others)
    eventually("SCORE-3: no model is left", 30, lambda: gone(others))


@pytest.mark.parametrize("over", STAGES)
@whole("another end")
def test_the_models_of_a_session_end_when_it_stops(over: str) -> None:
    answer = in_session(
        "local[2]",
        scoring(
            over,
            """
            import psutil
            ours = {row.process for row in scored(models.WithProcess()).collect()}
            before = [psutil.pid_exists(pid) for pid in ours]
            here = psutil.Process()
            spark.stop()
            until = time.monotonic() + 20
            while any(map(psutil.pid_exists, ours)) and time.monotonic() < until:
                time.sleep(0.1)
            def opened(process):
                return [link.path for link in process.open_files() if "phalanx" in link.path]
            left = [p.name() for p in here.children(recursive=True) if p.name().startswith("phalanx")]
            jvm = [p for p in here.children() if p.name() == "java"]
            links = [os.readlink(f"/proc/{p.pid}/fd/{fd}") for p in jvm for fd in os.listdir(f"/proc/{p.pid}/fd")]
            answer = dict(
                before=before, after=list(map(psutil.pid_exists, ours)), left=left,
                memory=[link for link in links if "phalanx-batch" in link or "phalanx-model" in link],
            )
            """,
        ),
        conf=conf_of("local[2]") | {"spark.phalanx.predict.idleTimeout": "10min"},
        timeout=150,
    )
    assert answer == {"before": [True], "after": [False], "left": [], "memory": []}, "SCORE-3, JAR-34"


@pytest.mark.parametrize("over", STAGES)
@whole("the memory of many tasks")
def test_eight_tasks_of_an_executor_share_one_copy_of_the_weights(over: str) -> None:
    answer = in_session(
        "local-cluster[1,8,2048]",
        scoring(
            over,
            """
            import psutil, torch

            class Weights(torch.nn.Module):
                def __init__(self, megabytes):
                    super().__init__()
                    self.weights = torch.nn.Parameter(torch.ones(megabytes << 18))
                def forward(self, x):
                    time.sleep(0.2)  # so that all tasks are there
                    return x * self.weights[:: 1024].sum()

            frame = spark.range(0, 64, 1, 8).selectExpr("double(id) as x")

            def memory_with(model):
                phalanx.predict(frame, model, inputs="x", outputs="y double", batch_size=4).collect()
                below = psutil.Process().children(recursive=True)
                pss = {}
                for process in below:
                    try:
                        if process.name() != "java":
                            pss[process.pid] = process.name(), process.memory_full_info().pss
                    except psutil.Error:
                        pass
                return pss

            MIB = 1 << 20
            memory_with(Weights(1))  # the workers and the pool are there
            small = memory_with(Weights(2))
            large = memory_with(Weights(512))
            new = [pss for pid, (name, pss) in large.items() if pid not in small and name == "phalanx-model"]
            last = [pss for name, pss in small.values() if name == "phalanx-model"]
            total = lambda found: sum(pss for _, pss in found.values())
            own = sum(last) / len(last)  # of a process without weights
            answer = dict(models=len(new), copies=(total(large) - total(small) - own) / (512 * MIB))
            """,
        ),
        conf=conf_of("") | {"spark.phalanx.predict.idleTimeout": "10min"},
        timeout=220,
    )
    assert answer["models"] == 1
    assert answer["copies"] <= 1.3, "the weights' PSS"
