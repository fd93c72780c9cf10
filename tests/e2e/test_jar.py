"""Where the jar is: on the driver's class path only, it goes to the executors with the first run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import phalanx
import pytest
from programs import APPS, Program, classic_conf


@pytest.mark.timeout(240)
def test_a_jar_that_only_the_driver_has_reaches_the_executors(tmp_path: Path) -> None:
    conf = classic_conf("local-cluster[2,1,1024]")
    del conf["spark.jars"], conf["spark.plugins"]
    conf["spark.driver.extraClassPath"] = phalanx.jar_path()
    command = [sys.executable, APPS / "smoke.py", "2", "jvm"]
    with Program(command, tmp_path / "out", env={"DRIVER_CONF": json.dumps(conf)}) as driver:
        assert driver.ends(200) == 0, driver.text
        [line] = [line for line in driver.text.splitlines() if line.startswith("SMOKE ")]
    seen = json.loads(line.removeprefix("SMOKE "))
    assert [rank["sum"] for rank in seen["jvm"]["results"]] == [1.5, 1.5]
