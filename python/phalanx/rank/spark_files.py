"""Files that Spark distributed (addFile, addPyFile, --files, --py-files), in the ranks as in PySpark's workers.

RANK-28 (same-imports): `import` finds in a rank what it finds in a Python worker of the same executor, in the same
order.
RANK-29 (spark-files): `pyspark.SparkFiles` works in a rank. It costs nothing in a rank that never imports pyspark.
RANK-30 (no-pyspark): neither end imports pyspark for this. The node's end is given what Spark says, and the rank's end
waits until the training code imports pyspark.
"""

from __future__ import annotations

import os
import sys

from ..plumbing.import_hooks import after_import
from . import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from types import ModuleType
    from typing import Any

# Where SparkFiles is defined: since Spark 4, and before.
_MODULES = ("pyspark.core.files", "pyspark.files")


def enter(variables: MutableMapping[str, str] | None = None) -> None:
    """Gives this process, a rank, what its environment says of Spark's files."""
    variables = os.environ if variables is None else variables
    root = variables.get(contract.ENV_SPARK_FILES)
    if not root:
        return
    # A rank's path has no entry of a script yet, which is what pyspark leaves in front.
    sys.path[:0] = entries(variables)

    def tell(module: ModuleType) -> None:
        _tell(module, root)

    after_import(_MODULES, tell)
    for name in _MODULES:
        if name in sys.modules:
            tell(sys.modules[name])


def entries(variables: Mapping[str, str]) -> list[str]:
    """What `enter` puts first on `sys.path`: of Spark's files what is not there yet, the last added in front."""
    root = variables.get(contract.ENV_SPARK_FILES)
    if not root:
        return []
    names = [name for name in variables.get(contract.ENV_PY_FILES, "").split(os.pathsep) if name]
    found = dict.fromkeys([root, *(os.path.join(root, name) for name in names)])
    return [entry for entry in found if entry not in sys.path][::-1]


def _tell(module: ModuleType, root: str) -> None:
    files: Any = getattr(module, "SparkFiles", None)
    if files is not None:
        files._root_directory = root
        files._is_running_on_worker = True
