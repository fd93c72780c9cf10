"""Pythons for executors that are not the driver's."""

from __future__ import annotations

import sys
import sysconfig
import tarfile
from pathlib import Path


def bare_python(path: Path, *packages: Path) -> Path:
    """A Python that has this one's packages but Phalanx, which is beside them, and those of more folders."""
    folders = [sysconfig.get_path("purelib"), *map(str, packages)]
    path.write_text(
        "#!/bin/sh\n"
        "export ENVIRONMENT=archived\n"
        f'export PYTHONPATH="{":".join(folders)}:$PYTHONPATH"\n'
        f'exec {sys._base_executable} "$@"\n'  # type: ignore[attr-defined]
    )
    path.chmod(0o755)
    return path


def environment(folder: Path, *packages: Path) -> Path:
    """An archive with such a Python as `bin/python`."""
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(bare_python(folder / "python", *packages), "bin/python")
    return archive
