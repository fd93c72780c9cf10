"""Which jar a session has: one on the driver's class path only, and one of another version."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import phalanx
import pytest
from support.places import APPS
from support.programs import ONE_EXECUTOR, Program, classic_conf
from support.tiers import whole


@whole("the jar from elsewhere")
@pytest.mark.timeout(240)
def test_a_jar_that_only_the_driver_has_reaches_the_executors(tmp_path: Path) -> None:
    conf = classic_conf(ONE_EXECUTOR)
    del conf["spark.jars"], conf["spark.plugins"]
    conf["spark.driver.extraClassPath"] = phalanx.jar_path()
    command = [sys.executable, APPS / "smoke.py", "2", "jvm"]
    with Program(command, tmp_path / "out", env={"DRIVER_CONF": json.dumps(conf)}) as driver:
        assert driver.ends(200) == 0, driver.text
    seen = driver.printed("SMOKE")
    assert [rank["sum"] for rank in seen["jvm"]["results"]] == [1.5, 1.5]


@whole("a real jar of another version")
@pytest.mark.timeout(240)
def test_a_jar_of_another_version_is_named_and_the_python_stage_needs_none(tmp_path: Path) -> None:
    other = tmp_path / "phalanx-spark.jar"
    with zipfile.ZipFile(phalanx.jar_path()) as own, zipfile.ZipFile(other, "w") as changed:
        for entry in own.infolist():
            content = own.read(entry)
            if entry.filename == "phalanx.properties":
                content = content.replace(f"version={phalanx.__version__}".encode(), b"version=9.9.9")
            changed.writestr(entry, content)
    conf = classic_conf(ONE_EXECUTOR) | {"spark.jars": str(other)}
    command = [sys.executable, APPS / "smoke.py", "2", "jvm", "auto"]
    with Program(command, tmp_path / "out", env={"DRIVER_CONF": json.dumps(conf)}) as driver:
        assert driver.ends(200) == 0, driver.text
    named = (
        f"the jar on the driver's class path has version 9.9.9, but this package has {phalanx.__version__}; "
    )
    seen = driver.printed("SMOKE")
    assert f"spark.phalanx.stage is jvm, but {named}" in seen["jvm"]["error"], "STAGE-1"
    assert f"Phalanx takes the python stage, because {named}" in driver.text, (
        "STAGE-2: a warning is shown to everybody"
    )
    assert [rank["sum"] for rank in seen["auto"]["results"]] == [1.5, 1.5]
