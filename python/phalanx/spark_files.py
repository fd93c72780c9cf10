"""Files that Spark distributed (addFile, addPyFile, --files, --py-files), in the ranks as in PySpark's workers.

FILES-1: `import` finds in a rank what it finds in a Python worker of the same executor, in the same order.
FILES-2: `pyspark.SparkFiles` works in a rank, and costs one that never imports pyspark nothing.
FILES-3: neither end imports pyspark for this: the node's end is given what Spark says, the rank's end waits for
the training code's own import.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

ROOT = "PHALANX_SPARK_FILES"
PY_FILES = "PHALANX_PY_FILES"

# Where SparkFiles is defined: since Spark 4, and before.
_MODULES = ("pyspark.core.files", "pyspark.files")


def environment(root: str | None, py_files: Iterable[str]) -> dict[str, str]:
    """The variables that tell a rank about Spark's folder `root`, and what in there belongs on `sys.path`."""
    if not root:
        return {}
    names = [name for name in py_files if name and os.pathsep not in name]
    return {ROOT: os.path.abspath(root), PY_FILES: os.pathsep.join(names)}


def py_files_on(path: Sequence[str], root: str) -> list[str]:
    """Which entries of a worker's `sys.path` are py-files below `root`, in the order in which they were added."""
    folder = os.path.join(os.path.abspath(root), "")
    found = [entry[len(folder) :] for entry in path if entry.startswith(folder) and len(entry) > len(folder)]
    return found[::-1]  # pyspark's workers put each before those that are there


def enter(variables: MutableMapping[str, str] | None = None) -> None:
    """Gives this process, a rank, what its environment says of Spark's files."""
    variables = os.environ if variables is None else variables
    root = variables.get(ROOT)
    if not root:
        return
    # A rank's path has no entry of a script yet, which is what pyspark leaves in front.
    sys.path[:0] = entries(variables)
    sys.meta_path.insert(0, _Finder(root))
    for name in _MODULES:
        if name in sys.modules:
            _say(sys.modules[name], root)


def entries(variables: Mapping[str, str]) -> list[str]:
    """What `enter` puts first on `sys.path`: of Spark's files what is not there yet, the last added in front."""
    root = variables.get(ROOT)
    if not root:
        return []
    names = [name for name in variables.get(PY_FILES, "").split(os.pathsep) if name]
    found = dict.fromkeys([root, *(os.path.join(root, name) for name in names)])
    return [entry for entry in found if entry not in sys.path][::-1]


def _say(module: ModuleType, root: str) -> None:
    files: Any = getattr(module, "SparkFiles", None)
    if files is not None:
        files._root_directory = root
        files._is_running_on_worker = True


class _Finder:
    """Finds pyspark's module of SparkFiles where everybody does, and tells it the root once it is loaded."""

    def __init__(self, root: str) -> None:
        self._root = root

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._root)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """A module's own loader, but for what is said to the module at the end."""

    def __init__(self, loader: Any, root: str) -> None:
        self._loader = loader
        self._root = root

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _say(module, self._root)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
