"""The example that trains through a SIGKILL ends with the weights of an undisturbed run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from support.places import PYTHON
from support.tiers import whole

EXAMPLE = PYTHON / "examples" / "resume.py"

pytestmark = pytest.mark.timeout(300)


@whole("a training whose rows are counted")
def test_the_weights_are_those_of_an_undisturbed_run() -> None:
    env = os.environ | {"PYTHONPATH": str(PYTHON), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[phalanx] restart 1 of 1: rank 1 (" in done.stdout
    # Rank 0 may or may not have saved the step in which rank 1 was killed.
    assert re.search("killed at step 6, went on from step [67]; the weights are the same", done.stdout)
