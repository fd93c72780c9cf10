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
from support.places import APPS
from support.programs import ONE_EXECUTOR, Program, classic_conf
from support.tiers import whole

pytestmark = pytest.mark.timeout(180)

LIBRARY = f"native/linux/{platform.machine()}/libphalanx_jni.so"


def jar_with(library: bytes | None, path: Path) -> Path:
    """The jar with another native library, or without native files, as a wheel has it."""
    with zipfile.ZipFile(phalanx.jar_path()) as whole, zipfile.ZipFile(path, "w") as broken:
        for entry in whole.infolist():
            if library is not None or not entry.filename.startswith("native/"):
                broken.writestr(
                    entry, library if entry.filename == LIBRARY and library else whole.read(entry)
                )
    return path


def of_a_wheel(path: Path) -> Path:
    return jar_with(None, path)


def damaged(path: Path) -> Path:
    return jar_with(b"\x7fELF is how it begins, and then it is cut off", path)


@whole("what BareSuite and NativeLibrarySuite have from Scala")
@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (of_a_wheel, "use the jar that phalanx.jar_path() makes"),
        (damaged, "tried "),
    ],
)
def test_a_native_library_that_cant_be_loaded_is_described_to_the_driver_and_hurts_nothing_else(
    broken: Callable[[Path], Path], reason: str, tmp_path: Path
) -> None:
    conf = classic_conf(ONE_EXECUTOR) | {"spark.jars": str(broken(tmp_path / "phalanx.jar"))}
    command = [sys.executable, APPS / "smoke.py", "2", "jvm", "python"]
    with Program(command, tmp_path / "out", env={"DRIVER_CONF": json.dumps(conf)}) as driver:
        assert driver.ends(150) == 0, driver.text
    seen = driver.printed("SMOKE")
    message = seen["jvm"]["error"]
    assert f"can't be loaded on linux/{platform.machine()}" in message, message
    assert " ".join(platform.libc_ver()) in message, message
    assert reason in message, message
    assert LIBRARY in message, message
    assert [rank["sum"] for rank in seen["python"]["results"]] == [1.5, 1.5], "the python stage needs no jar"
