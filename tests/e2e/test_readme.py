"""README as a stranger follows it: every block runs as it is written there, in order, in one folder, with the wheel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.installed import Installed
from support.places import ROOT
from support.programs import output_of
from support.readme import blocks, python_example
from support.tiers import whole

pytestmark = [pytest.mark.timeout(400), whole("an environment of its own")]


def ran(command: list[str], installed: Installed, folder: Path) -> str:
    """What the command printed; it ended well."""
    return output_of(command, env=installed.env, within=300, folder=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that README's examples are in, in a clone where `make` has run."""
    python_example(tmp_path)
    (train,) = blocks("python train.py")
    (tmp_path / "train.py").write_text(train)
    (tmp_path / "jvm").symlink_to(ROOT / "jvm")
    return tmp_path


def test_the_python_example_runs(folder: Path, installed: Installed) -> None:
    output = ran(["python", "example.py"], installed, folder)
    for rank in (0, 1):
        assert f"[rank {rank}] loss " in output


def test_the_spark_submit_examples_run(folder: Path, installed: Installed) -> None:
    commands = [block for block in blocks("sh") if "spark-submit" in block or "JAR=" in block]
    assert len(commands) == 2, "one application in Python and one in Scala"
    output = ran(["bash", "-euc", "\n".join(commands)], installed, folder)
    assert "[rank 1] loss " in output, "the application in Python"
    assert '"accuracy"' in output, "the application in Scala"


def test_the_scala_example_runs(folder: Path, installed: Installed) -> None:
    (scala,) = blocks("scala")
    (folder / "example.scala").write_text(f"{scala}\nsys.exit(0)\n")
    (first, *_) = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("JAR=")]
    shell = "spark-shell --master 'local[2]' --jars \"$JAR\" -i example.scala"
    output = ran(["bash", "-euc", f"{first}\n{shell}"], installed, folder)
    found = re.search(r'\{"weight": ?([-.\d]+)\}', output)
    assert found, output
    assert float(found[1]) == pytest.approx(3, abs=0.2)
