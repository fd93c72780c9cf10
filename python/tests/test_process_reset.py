"""What a forked rank restores, beyond what test_warm_pool.py sees of it as a whole."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
import zipimport
from pathlib import Path
from typing import Any

import pytest
from phalanx.warm_pool.process_reset import Restorer


def test_archives_are_read_again_only_if_they_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, changed, folder = (str(tmp_path / name) for name in ("same.zip", "changed.zip", "folder"))
    os.mkdir(folder)
    for archive in (same, changed):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("of_an_archive.py", "")
    for entry in (same, changed, folder):
        monkeypatch.syspath_prepend(entry)
    for name in ("of_an_archive", "added", "in_a_folder"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module("of_an_archive")
    with pytest.raises(ImportError):
        importlib.import_module("added")
    restorer = Restorer()
    with zipfile.ZipFile(changed, "a") as file:
        file.writestr("added.py", "")
    Path(folder, "in_a_folder.py").touch()
    read: list[str] = []
    before: Any = zipimport._read_directory  # type: ignore[attr-defined]
    monkeypatch.setattr(
        zipimport, "_read_directory", lambda archive: (read.append(archive), before(archive))[1]
    )
    restorer.forget_folders()
    assert importlib.import_module("added").__file__ == os.path.join(changed, "added.py"), "POOL-7"
    assert importlib.import_module("in_a_folder").__file__ == os.path.join(folder, "in_a_folder.py")
    assert changed in read
    assert same not in read
    assert importlib.import_module("of_an_archive")
