"""What a stranger's machine is told, and what the two commands are made of."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from support.places import ROOT

pytestmark = pytest.mark.timeout(60)


def test_a_missing_toolchain_is_listed_whole_with_the_packages_that_have_it(tmp_path: Path) -> None:
    for tool in ("bash", "sed", "head", "column", "env"):
        for folder in ("/bin", "/usr/bin"):
            if os.path.exists(f"{folder}/{tool}"):
                (tmp_path / tool).symlink_to(f"{folder}/{tool}")
                break
    done = subprocess.run(
        [str(ROOT / "scripts" / "preflight")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    for tool, package in (
        ("cargo", "rustup"),
        ("cc ", "build-essential"),
        ("java", "openjdk-17-jdk-headless"),
        ("mvn", "maven"),
        ("python3", "python3-venv"),
    ):
        lines = [line for line in done.stderr.splitlines() if line.strip().startswith(tool)]
        assert lines, done.stderr
        assert package in lines[0], done.stderr


def test_a_complete_machine_is_told_nothing() -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "preflight")], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ci_runs_make_test_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and line[0] != "#"]
    assert lines[-1] == "exec make test"
    assert all(line.startswith(("set ", "cd ", "exec ")) for line in lines)


def test_the_versions_of_the_wheel_the_workspace_the_module_and_the_jar_agree() -> None:
    import phalanx
    from phalanx import _native

    version = re.search(r'(?m)^version = "(.*)"$', (ROOT / "Cargo.toml").read_text())
    assert version
    assert phalanx.__version__ == _native.VERSION == version[1]
    assert 'dynamic = ["version"]' in (ROOT / "python/pyproject.toml").read_text(), (
        "maturin takes the workspace's"
    )
    with zipfile.ZipFile(phalanx.jar_path()) as jar:
        assert f"version={version[1]}" in jar.read("phalanx.properties").decode().splitlines()


def test_build_outputs_are_kept_out_of_git() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wrong = re.findall(r"(?m)^.*(?:\.so|\.pyc|phalanx-guard)$|^(?:target|\.venv)/.*$", tracked)
    assert [path for path in wrong if not path.endswith(".rs")] == []
