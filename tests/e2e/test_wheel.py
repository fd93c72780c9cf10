"""What is in a wheel, and what a machine needs for it: that of `make wheel`, else one of what `make build` made."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

import pytest
from support.installed import Installed
from support.programs import output_of
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), whole("an installed wheel")]

NATIVES = ["phalanx/_native.abi3.so", "phalanx/bin/phalanx-guard", "phalanx/jars/libphalanx_jni.so"]


def programs_in(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """Each file for the processor, those in jars, too."""
    found = {}
    for name in archive.namelist():
        content = archive.read(name)
        if content.startswith(b"\x7fELF"):
            found[name] = content
        elif name.endswith(".jar"):
            with zipfile.ZipFile(io.BytesIO(content)) as jar:
                found.update({f"{name}!{inner}": program for inner, program in programs_in(jar).items()})
    return found


def printed(installed: Installed, code: str, folder: Path) -> str:
    return output_of([installed.python, "-c", code], env=installed.env, within=60, folder=folder).strip()


def test_it_has_each_native_file_once_and_the_jars_have_none(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        assert sorted(programs_in(wheel)) == NATIVES, "SESSION-6"
        assert [name for name in wheel.namelist() if re.fullmatch(r"phalanx/jars/.*_2\.13-.*\.jar", name)]


def test_its_programs_need_no_python_of_the_builders_and_no_newer_c_library_than_its_name_says(
    installed: Installed,
) -> None:
    named = re.search(r"manylinux_(\d+)_(\d+)_", installed.wheel.name)
    with zipfile.ZipFile(installed.wheel) as wheel:
        for name, program in programs_in(wheel).items():
            assert not re.search(rb"libpython[\d.]+so", program), name
            # Whatever looks like a version of a symbol is taken for one.
            needed = {(int(a), int(b)) for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", program)}
            assert needed, name
            if named:
                assert max(needed) <= (int(named[1]), int(named[2])), name
                assert b".symtab" not in program, f"{name} is stripped"


def test_it_says_whose_software_is_in_it(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        [info] = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
        listed = json.loads(wheel.read(f"{info}/sboms/phalanx.cdx.json"))
        licences = wheel.read(f"{info}/licenses/LICENSE-THIRD-PARTY").decode()
        metadata = wheel.read(f"{info}/METADATA").decode()
        jars = [name for name in wheel.namelist() if name.endswith(".jar")]
        with zipfile.ZipFile(io.BytesIO(wheel.read(jars[0]))) as jar:
            assert jar.read("META-INF/LICENSE-THIRD-PARTY").decode() == licences
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.5")
    names = {one["name"] for one in listed["components"]}
    assert {"cloudpickle", "jni", "pyo3", "ring", "rust-std", "rustls"} <= names
    assert "serde_derive" not in names, "it runs while Phalanx is built, and is not inside"
    for one in listed["components"]:
        assert one["licenses"][0]["expression"], one
        assert f"{one['name']} {one['version']}" in licences
    assert "Copyright (c) 2012, Regents of the University of California" in licences, "cloudpickle's"
    assert "License-File: LICENSE-THIRD-PARTY" in metadata


def test_the_package_is_the_wheels_and_its_command_runs(installed: Installed, tmp_path: Path) -> None:
    where = printed(installed, "import phalanx; print(phalanx.__file__)", tmp_path)
    assert Path(where).is_relative_to(installed.folder)
    said = output_of(
        [installed.folder / "bin" / "phalanx", "submit", "--help"],
        env=installed.env,
        within=60,
        folder=tmp_path,
    )
    assert "submit" in said


def test_the_first_use_of_the_jar_makes_the_whole_one_and_the_next_finds_it(
    installed: Installed, tmp_path: Path
) -> None:
    code = "import os, phalanx; path = phalanx.jar_path(); print(path, os.stat(path).st_mtime_ns)"
    first = printed(installed, code, tmp_path)
    assert printed(installed, code, tmp_path) == first
    path = Path(first.split()[0])
    assert path.is_relative_to(installed.folder / "cache"), "XDG_CACHE_HOME"
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(installed.wheel) as wheel:
        inside = programs_in(whole)
        assert sorted(name.split("/")[-1] for name in inside) == [
            "lib_native.so",
            "libphalanx_jni.so",
            "phalanx-guard",
        ]
        assert set(inside.values()) == set(programs_in(wheel).values())
        assert all(re.match(r"native/linux/(x86_64|aarch64)/", name) for name in inside)
        assert whole.testzip() is None


def test_without_a_cache_the_whole_jar_is_in_a_private_folder_for_temporary_files(
    installed: Installed, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    env = installed.env | {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "temporary")}
    code = "import phalanx; print(phalanx.jar_path())"
    command = [installed.python, "-c", code]
    path = Path(output_of(command, env=env, within=60, folder=tmp_path).strip())
    private = path.parent.parent
    assert private.parent == tmp_path / "temporary"
    assert private.stat().st_mode & 0o777 == 0o700, "SESSION-6"
    private.chmod(0o777)
    with pytest.raises(AssertionError, match="is not a folder that only its user"):
        output_of(command, env=env, within=60, folder=tmp_path)
