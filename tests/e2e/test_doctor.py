"""`phalanx.doctor` on a cluster that is in order, in each way that Spark has one, and where its time runs out."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import phalanx
import pytest
from support.cluster import Standalone
from support.places import PYTHON
from support.programs import Program, eventually
from support.tiers import whole

pytestmark = pytest.mark.timeout(300)

# As long as a machine may need that is far too busy.
PATIENCE_S = 240.0


def not_ok(report: Any) -> list[Any]:
    """What isn't in order. How fast a busy machine is, and how much memory it has left, is nobody's fault. Other tests
    of the session may have ended executors."""
    others = ("bandwidth", "processors", "memory", "executors")
    return [one for one in report.findings if one.level != "ok" and one.check not in others]


@pytest.mark.behaviour
def test_a_cluster_in_order_has_no_error_and_the_run_with_nothing_to_train_adds_up(
    spark: Any, stage: Any
) -> None:
    # DOCTOR-3, DOCTOR-9
    report = phalanx.doctor(spark, num_processes=2, use_gpu=False, timeout=PATIENCE_S)
    assert not_ok(report) == [], str(report)
    assert report.ok
    said = {finding.check: finding.means for finding in report.findings}
    assert said["all-reduce"].startswith("2 ranks reduced 4 MiB over phalanx")
    assert len(report.hosts) == 1
    assert {fact["partition"] for fact in report.facts} == {0, 1}
    assert json.loads(report.to_json())["ok"] is True


@whole("another finding")
def test_tasks_that_do_not_start_in_time_are_said_and_the_slots_are_free_again(
    spark: Any, tmp_path: Path
) -> None:
    # DOCTOR-2, DOCTOR-10
    begun, go = str(tmp_path / "begun"), str(tmp_path / "go")

    def holds(_: Any) -> Iterator[int]:
        open(begun, "w").close()
        while not os.path.exists(go):
            time.sleep(0.02)
        yield 1

    context = spark.sparkContext
    holding = threading.Thread(target=lambda: context.parallelize([0], 1).mapPartitions(holds).collect())
    holding.start()
    try:
        eventually("one of the two slots is taken", 60, lambda: os.path.exists(begun))
        report = phalanx.doctor(spark, num_processes=2, use_gpu=False, timeout=12)
        assert not report.ok
        assert report.seconds < 60, (
            "12, and what Spark takes to end what was cancelled, on a machine that is busy"
        )
        answers = [finding for finding in report.findings if finding.check == "answer"]
        assert answers[0].level == "error", str(report)
        assert "None of 2 tasks that are to run at the same time had started" in answers[0].means
    finally:
        Path(go).touch()
        holding.join(60)
    assert context.parallelize(range(2), 2).barrier().mapPartitions(lambda them: them).collect() == [0, 1]


@whole("a standalone cluster")
def test_the_command_examines_a_standalone_cluster_and_its_exit_code_says_whether_it_is_in_order(
    standalone: Standalone, tmp_path: Path
) -> None:
    conf = standalone.conf() | {"spark.phalanx.warm.enabled": "false"}
    settings = [
        word for key, value in conf.items() if key != "spark.master" for word in ("--conf", f"{key}={value}")
    ]
    command = [sys.executable, "-m", "phalanx", "doctor", "--num-processes", "2", *settings]
    env = {"PYTHONPATH": str(PYTHON)}
    in_order = [*command, "--master", standalone.url, "--no-gpu", "--json", "--timeout", str(PATIENCE_S)]
    with Program(in_order, tmp_path / "out", env=env) as program:
        assert program.ends(PATIENCE_S + 30) == 0, program.text
        report, _ = json.JSONDecoder().raw_decode(program.text[program.text.index('{\n  "ok"') :])
    assert report["ok"] is True
    assert report["hosts"] == ["127.0.0.1"]
    without_gpus = [*command, "--master", "local[2]", "--timeout", "6"]
    with Program(without_gpus, tmp_path / "text", env=env) as program:
        assert program.ends(PATIENCE_S + 30) == 1, program.text
        assert "error   GPUs at the driver: 'spark.task.resource.gpu.amount' was unset" in program.text
