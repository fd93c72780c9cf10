"""README as a stranger follows it: every block runs as it is written there, in order, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()

pytestmark = pytest.mark.timeout(400)


def blocks(info: str) -> list[str]:
    return re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def ran(command: list[str], folder: Path) -> str:
    """What the command printed; it ended well."""
    done = subprocess.run(
        command,
        # A user's environment, with the package under test; PYSPARK_PYTHON as README's requirements ask.
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "python"),
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that README's examples are in, in a clone where `make` has run."""
    (tmp_path / "example.py").write_text("\n".join(blocks("python")))
    (train,) = blocks("python train.py")
    (tmp_path / "train.py").write_text(train)
    (tmp_path / "jvm").symlink_to(ROOT / "jvm")
    return tmp_path


def test_the_python_example_runs(folder: Path) -> None:
    output = ran([sys.executable, "example.py"], folder)
    for rank in (0, 1):
        assert f"[rank {rank}] loss " in output


def test_the_spark_submit_examples_run(folder: Path) -> None:
    commands = [block for block in blocks("sh") if "spark-submit" in block or "JAR=" in block]
    assert len(commands) == 2, "one application in Python and one in Scala"
    output = ran(["bash", "-euc", "\n".join(commands)], folder)
    assert "[rank 1] loss " in output, "the application in Python"
    assert '"accuracy"' in output, "the application in Scala"


def test_the_scala_example_runs(folder: Path) -> None:
    (scala,) = blocks("scala")
    (folder / "example.scala").write_text(f"{scala}\nsys.exit(0)\n")
    (first, *_) = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("JAR=")]
    shell = "spark-shell --master 'local[2]' --jars \"$JAR\" -i example.scala"
    output = ran(["bash", "-euc", f"{first}\n{shell}"], folder)
    found = re.search(r'\{"weight": ?([-.\d]+)\}', output)
    assert found, output
    assert float(found[1]) == pytest.approx(3, abs=0.2)
