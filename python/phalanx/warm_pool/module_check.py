"""Whether a rank that was forked from a pool has the modules that it would have imported itself.

POOL-6 (same-path): if a rank's path leads to another module than the one that the pool imported under that name, this
is found out before any code of the user's runs.
POOL-7 (same-source): if the pool's modules have changed on disk, this is found out, too.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import all_suffixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class Imported:
    """What a pool has imported beyond the modules `before`."""

    def __init__(self, before: set[str]) -> None:
        self._path = list(sys.path)
        self._places: dict[str, str] = {}
        self._stats: dict[str, tuple[int, int]] = {}
        for name, module in list(sys.modules.items()):
            origin = _file_of(module)
            if name in before or origin is None:
                continue
            top = "." not in name
            if top:
                self._places[name] = _place_of(module, origin)
            # Of installed packages the first file tells an upgrade; what a user edits may be any.
            if (top or not _is_installed(origin)) and (stat := stat_of(origin)):
                self._stats[origin] = stat

    def changed(self) -> str | None:
        """A file of these modules that is another by now."""
        return next((path for path, stat in self._stats.items() if stat_of(path) != stat), None)

    def shadowed(self, path: Sequence[str]) -> str | None:
        """A module, in a sentence, that this `sys.path` would find elsewhere; None if there is none."""
        for at, entry in enumerate(path):
            if entry in self._path:
                continue
            for name in _modules_in(entry, self._places):
                place = self._places[name]
                if place not in path or path.index(place) > at:
                    return f"its module {name} is in {entry}, and not in {place}"
        return None


def _modules_in(entry: str, names: dict[str, str]) -> list[str]:
    """Which of `names` an entry of `sys.path` has."""
    try:
        if os.path.isdir(entry):
            there = set(os.listdir(entry))
        else:
            from zipfile import ZipFile

            with ZipFile(entry) as archive:
                there = set()
                for member in archive.namelist():
                    first, slash, rest = member.partition("/")
                    if not slash or rest.startswith("__init__."):
                        there.add(first)
            return [n for n in names if n in there or any(n + s in there for s in all_suffixes())]
    except (OSError, ValueError, ImportError, RuntimeError):  # not there, or no archive
        return []
    except Exception as problem:
        if type(problem).__name__ == "BadZipFile":
            return []
        raise
    found = []
    for name in names:
        # a folder without __init__ is a namespace's, which a package further on goes before
        is_package = name in there and any(
            os.path.exists(os.path.join(entry, name, "__init__" + suffix)) for suffix in all_suffixes()
        )
        if is_package or any(name + suffix in there for suffix in all_suffixes()):
            found.append(name)
    return found


def _file_of(module: ModuleType) -> str | None:
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return origin if isinstance(origin, str) and os.path.isabs(origin) else None


def _place_of(module: ModuleType, origin: str) -> str:
    """The entry of `sys.path` that a top-level module was found in."""
    folder = os.path.dirname(origin)
    return os.path.dirname(folder) if hasattr(module, "__path__") else folder


def _is_installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path or path.startswith(os.path.dirname(os.__file__))


def stat_of(path: str) -> tuple[int, int] | None:
    """What changes when a file does; None where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
