"""Training files, each behind another kind of path, and what Python itself gives them."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

# Writes what it finds into the folder that is its first argument, by its rank.
PROBE = '''"""A training."""
_names = sorted(globals())
import importlib, inspect, json, os, sys
class Model:
    """A class of the main script's."""
    def step(self): return 1
def _described(loader):
    return [type(loader).__name__, getattr(loader, "name", ""), getattr(loader, "path", getattr(loader, "archive", ""))]
def _text(thing):
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError) as problem:
        return type(problem).__name__
_spec = __spec__
_found = {
    "names": _names, "name": __name__, "doc": __doc__, "package": __package__, "cached": __cached__, "file": __file__,
    "annotations": __annotations__, "builtins": type(__builtins__).__name__, "loader": _described(__loader__),
    "spec": _spec and [_spec.name, _spec.origin, _spec.cached, _spec.parent, _spec.has_location, _spec.loader_state,
                       _spec.submodule_search_locations, _described(_spec.loader)],
    "argv": sys.argv, "path": sys.path[0], "code": sys._getframe().f_code.co_filename,
    "main": sys.modules["__main__"].__dict__ is globals(), "sibling": importlib.import_module("sibling").VALUE,
    "sources": [_text(Model), _text(Model.step), _text(_text)],
}
with open(os.path.join(sys.argv[1], os.environ.get("RANK", "plain")), "w") as _file:
    json.dump({"found": _found, "cwd": os.getcwd()}, _file)
'''

# A main script's functions and classes, and what `inspect.getsource` says of them where this runs.
SOURCES = """
import dataclasses, enum, inspect
class Net:
    lr = 3
@dataclasses.dataclass
class Config:
    steps: int = 3
class Mode(enum.Enum):
    TRAIN = 1
class Child(Net):
    class Inner:
        def f(self): return 1
    def g(self): return self.lr
def made():
    class Local:
        x = 1
    return Local
def texts(_=None):
    found = []
    for thing in (Net, Config, Mode, Child, Child.Inner, Child.Inner.f, Child.g, made(), made, texts, lambda: 7):
        try:
            found.append(inspect.getsource(thing))
        except (OSError, TypeError) as problem:
            found.append(type(problem).__name__)
    return found
"""

KINDS = (
    "train.py",
    "./train.py",
    "folder/../train.py",
    "two words, \u00e9/tra in.py",
    "~/train.py",
    "no t\udce4xt.py",
    "absolute",
    "absolute with dots",
    "file that is a link.py",
    "link to a link.py",
    "folder that is a link/train.py",
    "folder that is a link/../train.py",
    "absolute/folder that is a link/train.py",
    "no_ending",
    "byte_code.pyc",
    "archive.zip",
    "./folder/../archive.zip",
    "archive that is a link",
    "program",
    "./program//",
    "folder/../program/",
    "program that is a link",
    "absolute/program",
    "byte_code",
    "elsewhere/below/.",
)


def made(folder: Path) -> dict[str, str]:
    """Puts the files there; the path of each kind, as from `folder`."""
    for name in ("", "folder", "two words, \u00e9", "~", "elsewhere/below"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "sibling.py").write_text(f"VALUE = {name!r}\n")
        (folder / name / "train.py").write_text(PROBE)
    (folder / "elsewhere" / "sibling.py").write_text("VALUE = 'elsewhere'\n")
    (folder / "elsewhere" / "train.py").write_text(PROBE)
    (folder / "two words, \u00e9" / "tra in.py").write_text(PROBE)
    for name in ("no_ending", "no t\udce4xt.py"):
        (folder / name).write_text(PROBE)
    (folder / "file that is a link.py").symlink_to("elsewhere/below/train.py")
    (folder / "folder" / "again.py").symlink_to(folder / "file that is a link.py")
    (folder / "link to a link.py").symlink_to("folder/again.py")
    (folder / "folder that is a link").symlink_to(folder / "elsewhere" / "below")
    py_compile.compile(str(folder / "train.py"), str(folder / "byte_code.pyc"))
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", PROBE)
        archive.writestr("sibling.py", "VALUE = 'in the archive'\n")
    (folder / "archive that is a link").symlink_to("archive.zip")
    for name in ("program", "byte_code", "elsewhere/below"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "sibling.py").write_text(f"VALUE = 'in {name}'\n")
    for name in ("program", "elsewhere/below"):
        (folder / name / "__main__.py").write_text(PROBE)
    py_compile.compile(str(folder / "train.py"), str(folder / "byte_code" / "__main__.pyc"))
    (folder / "program that is a link").symlink_to("program")
    other = {
        "absolute": f"{folder}/train.py",
        "absolute with dots": f"{folder}/./folder/..//train.py",
        "absolute/folder that is a link/train.py": f"{folder}/folder that is a link/train.py",
        "absolute/program": f"{folder}/program",
    }
    return {kind: other.get(kind, kind) for kind in KINDS}


def by_python(file: str | None, folder: Path, out: Path, *args: str, module: str | None = None) -> Any:
    """What Python gives this file, whose path is as from `folder`, or with `-m` a module; it uses `out` for that."""
    words = [str(file)] if module is None else ["-m", module]
    env = {name: value for name, value in os.environ.items() if name != "RANK"}
    subprocess.run(
        [sys.executable, *words, str(out), *args],
        cwd=folder,
        env=env,
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return found(out, "plain")["found"]


def found(out: Path, rank: object) -> Any:
    """What a rank has found, as `found`, and its `cwd`."""
    return json.loads((out / str(rank)).read_text())
