"""A jar whose native library is missing or broken: what the driver is told, and that other work goes on."""

from __future__ import annotations

import json
import platform
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import phalanx
import pytest
from programs import APPS, Program, classic_conf

pytestmark = pytest.mark.timeout(180)

LIBRARY = f"native/linux/{platform.machine()}/libphalanx_jni.so"


def jar_with(library: bytes | None, path: Path) -> Path:
    """The jar, with another native library or none."""
    with zipfile.ZipFile(phalanx.jar_path()) as whole, zipfile.ZipFile(path, "w") as broken:
        for entry in whole.infolist():
            if entry.filename != LIBRARY:
                broken.writestr(entry, whole.read(entry))
            elif library is not None:
                broken.writestr(entry, library)
    return path


def without(path: Path) -> Path:
    return jar_with(None, path)


def damaged(path: Path) -> Path:
    return jar_with(b"\x7fELF is how it begins, and then it is cut off", path)


@pytest.mark.parametrize(("broken", "reason"), [(without, "the jar has no "), (damaged, "tried ")])
def test_a_native_library_that_cant_be_loaded_is_described_to_the_driver_and_hurts_nothing_else(
    broken: Callable[[Path], Path], reason: str, tmp_path: Path
) -> None:
    conf = classic_conf("local-cluster[2,1,1024]") | {"spark.jars": str(broken(tmp_path / "phalanx.jar"))}
    command = [sys.executable, APPS / "smoke.py", "2", "jvm", "python"]
    with Program(command, tmp_path / "out", env={"DRIVER_CONF": json.dumps(conf)}) as driver:
        assert driver.ends(150) == 0, driver.text
        [line] = [line for line in driver.text.splitlines() if line.startswith("SMOKE ")]
    seen = json.loads(line.removeprefix("SMOKE "))
    message = seen["jvm"]["error"]
    assert f"can't be loaded on linux/{platform.machine()}" in message, message
    assert " ".join(platform.libc_ver()) in message, message
    assert reason in message, message
    assert LIBRARY in message, message
    assert [rank["sum"] for rank in seen["python"]["results"]] == [1.5, 1.5], "the python stage needs no jar"
