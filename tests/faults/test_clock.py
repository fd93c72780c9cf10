"""The system's clock jumps while ranks run: no deadline, time-out, order of failures or restart depends on it.

The clock of the driver's and the ranks' processes is shifted by a preloaded library; nobody else's changes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
from support.places import APPS
from support.programs import ONE_EXECUTOR, classic_conf, seen_by
from support.tiers import faces_wanted

pytestmark = pytest.mark.timeout(480)

FACES = ["python", "jvm", "local"]

HOUR_S = 3600


@pytest.fixture(scope="module")
def by_face(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By face: what `clock_jumps.py` saw."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the library that shifts the clock")
    folder = tmp_path_factory.mktemp("clock")
    library, shift = folder / "clock_shift.so", folder / "shift"
    source = APPS / "clock_shift.c"
    subprocess.run(
        [compiler, "-O1", "-Wall", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60
    )
    shift.write_bytes(bytes(8))
    env = {
        "DRIVER_CONF": json.dumps(classic_conf(ONE_EXECUTOR)),
        "CLOCK_SHIFT": str(shift),
        "LD_PRELOAD": str(library),
    }
    command = [sys.executable, APPS / "clock_jumps.py", folder, *faces_wanted(request, FACES)]
    return seen_by(command, folder, env=env, within=450)


@pytest.mark.parametrize("over", FACES)
def test_nothing_depends_on_the_systems_clock(over: str, by_face: dict[str, Any]) -> None:
    seen = by_face[over]
    trained = seen["trains_while_the_clock_jumps"]["results"]
    assert [sums for *sums, _ in trained] == [[2.0, 2.0]] * 2, seen
    assert all(jumped > 23 * HOUR_S for *_, jumped in trained), "the clock did jump in the ranks"

    hung = seen["hangs_after_the_clock_was_set_back"]
    assert hung["kind"] == "hang", hung
    assert hung["seconds"] < 60, "a day would have had to pass"
    [doing] = [doing for doing in hung["doing"] if doing]
    assert doing.startswith("all_reduce"), hung
    assert 0 <= int(doing.split(" for ")[1].split(" s")[0]) < 60, doing

    raised = seen["raises_before_the_clock_was_set_back"]
    assert (raised["rank"], raised["kind"]) == (1, "exception"), raised
    assert "ValueError: first" in raised["message"], raised

    assert seen["is_killed_once"]["results"] == ["1", "1"], seen["is_killed_once"]

    deaf = seen["does_not_want_to_end"]
    assert deaf["kind"] == "cancelled", deaf
    assert deaf["seconds"] < 30, "its grace is 1 s"

    for name, run in seen.items():
        assert all(0 <= seconds < 120 for seconds in run["phases"]), f"{name}: {run['phases']}"
        assert all(idle is None or abs(idle) < 120 for idle in run.get("idle", [])), f"{name}: {run['idle']}"
