"""spark-submit on a standalone cluster: a Python application in client mode, the Scala example in both modes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Standalone
from support.interpreters import bare_python, environment
from support.places import APPS, ROOT
from support.programs import WARM_IF_ASKED, Program, spark_submit
from support.tiers import whole

pytestmark = [pytest.mark.timeout(240), whole("a standalone cluster")]


@pytest.fixture(params=["python", "jvm"])
def over(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def submitted(over: str, standalone: Standalone, tmp_path: Path) -> list[dict[str, Any]]:
    """What the ranks of a submitted Python application found."""
    (tmp_path / "recipe.py").write_text("def doubled(rate):\n    return 2 * rate\n")
    (tmp_path / "data.txt").write_text("seven images")
    archive = environment(tmp_path, *([ROOT / "python"] if over == "python" else []))
    conf = standalone.conf() | {
        **WARM_IF_ASKED,
        "spark.phalanx.stage": over,
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": "./environment/bin/python",
    }
    command = spark_submit(
        "--deploy-mode", "client", "--py-files", tmp_path / "recipe.py", "--files", tmp_path / "data.txt",
        "--archives", f"{archive}#environment", APPS / "submitted.py", "0.5", conf=conf,
    )  # fmt: skip
    with Program(command, tmp_path / "out") as program:
        assert program.ends(180) == 0, program.text
    return list(program.printed("SUBMITTED"))


def test_ranks_of_a_submitted_application_have_its_modules_files_and_environment(
    submitted: list[dict[str, Any]], over: str
) -> None:
    assert len(submitted) == 2
    for rank in submitted:
        assert (rank["ranks"], rank["rate"], rank["data"]) == (2.0, 2.0, "seven images")
        assert rank["environment"] == "archived"
        own = str(ROOT / "python")
        assert rank["phalanx"].startswith(own) == (over == "python"), (
            "the jar brings the executors its Phalanx"
        )


class Example:
    """The Scala example application, submitted to the cluster, whose Python has no Phalanx."""

    def __init__(self, standalone: Standalone, folder: Path, mode: str, *arguments: str | Path) -> None:
        drivers = standalone.drivers()
        conf = standalone.conf() | {
            **WARM_IF_ASKED,
            "spark.pyspark.python": str(bare_python(folder / "python")),
            # In cluster mode spark-submit is to wait for the end, too.
            "spark.standalone.submit.waitAppCompletion": "true",
        }
        [jar] = (ROOT / "jvm" / "examples" / "target").glob("phalanx-examples_2.13-*.jar")
        name = "dev.phalanx.examples.TrainDigits"
        command = spark_submit("--deploy-mode", mode, "--class", name, jar, *arguments, conf=conf)
        with Program(command, folder / "out") as program:
            self.ended_well = program.ends(200) == 0
            self.text = program.text
        if mode == "cluster":
            # spark-submit's own exit code says no more than that the driver could be submitted.
            self.ended_well = " is FINISHED" in self.text
            [driver] = [path for path in standalone.drivers() if path not in drivers]
            self.text += (driver / "stdout").read_text() + (driver / "stderr").read_text()


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_the_scala_example_trains_on_two_workers_and_prints_its_result(
    mode: str, standalone: Standalone, tmp_path: Path
) -> None:
    done = Example(standalone, tmp_path, mode, "--ranks=2", "--epochs=2")
    assert done.ended_well, done.text
    for rank in range(2):
        assert f"[rank {rank}] " in done.text, "the ranks' output is shown"
        assert f"rank {rank} on 127.0.0.1: finished" in done.text, done.text
    [result] = [line for line in done.text.splitlines() if line.startswith("result: ")]
    assert isinstance(json.loads(result.removeprefix("result: ")), dict)


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_scala_application_whose_rank_fails_says_which_and_why(
    mode: str, standalone: Standalone, tmp_path: Path
) -> None:
    training = tmp_path / "train.py"
    training.write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise KeyError('no such column')\n"
        "time.sleep(600)\n"
    )
    done = Example(standalone, tmp_path, mode, "--ranks=2", f"--file={training}")
    assert (
        "the training failed (exception): rank 1 (127.0.0.1) raised KeyError: 'no such column'" in done.text
    )
    assert not done.ended_well, done.text
