"""Files as Spark ships them."""

from __future__ import annotations

import zipfile
from pathlib import Path

from phalanx.stages.spark_files import environment


def shipped(folder: Path) -> dict[str, str]:
    """A folder as Spark fills it: a file, a module, a zip and an egg with modules; and the variables for a rank."""
    folder.mkdir()
    (folder / "data.txt").write_text("forty-two")
    (folder / "of_py.py").write_text("WHERE = 'py'\n")
    for name in ("first.zip", "second.egg"):
        with zipfile.ZipFile(folder / name, "w") as file:
            file.writestr("of_zip.py", f"WHERE = {name!r}\n")
    return environment(str(folder), ["of_py.py", "first.zip", "second.egg"])
