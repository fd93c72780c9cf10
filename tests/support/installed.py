"""Phalanx as a stranger has it: a wheel in an environment of its own, and nothing of the source tree.

torch, pyspark and what else a user brings are those of the tests' environment, so that nothing large is there twice.
PHALANX_WHEEL names the wheel, as `make wheel` does; without it one is made of what `make build` built.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from support.places import ROOT

UV = ROOT / ".venv" / "bin" / "uv"


@dataclass(frozen=True)
class Installed:
    """A wheel, and the environment that it is installed in."""

    wheel: Path
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def env(self) -> dict[str, str]:
        """The variables of its user; PYSPARK_PYTHON as README's requirements ask."""
        # The tests' environment has spark-submit, which takes the Python that PYSPARK_PYTHON names.
        path = [self.folder / "bin", Path(sys.executable).parent, os.environ["PATH"]]
        return {
            "PATH": os.pathsep.join(map(str, path)),
            "PYTHONPATH": "",
            "PYSPARK_PYTHON": str(self.python),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }


def wheel_in(folder: Path) -> Path:
    """The wheel to test; one that has to be made is made in `folder`."""
    if named := os.environ.get("PHALANX_WHEEL"):
        return Path(named).resolve()
    run(ROOT / "scripts" / "wheel.py", "--quick", "--into", folder)
    [made] = folder.glob("*.whl")
    return made


def install(wheel: Path, folder: Path) -> Installed:
    """The wheel in a new environment, in which its dependencies are those of the tests."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    made = Installed(wheel, folder)
    install_into(made.python, wheel)
    # Behind the environment's own packages. A folder that is added so has its own .pth files unread: the clone's.
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


def install_into(python: Path, wheel: Path) -> None:
    """Puts the wheel, in the place of another, into the environment of this Python."""
    run(UV, "pip", "install", "--quiet", "--python", python, "--no-deps", "--reinstall", wheel)


def run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
