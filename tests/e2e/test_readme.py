"""README's Python code runs as it is written there, from the first block to the last."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python_blocks() -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(600)
def test_the_readmes_python_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    blocks = python_blocks()
    assert blocks, "README.md has no python block"
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)],
        # A script's environment, with the package under test; PYSPARK_PYTHON as README's requirements ask.
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        assert f"[rank {rank}] " in done.stdout, done.stdout
