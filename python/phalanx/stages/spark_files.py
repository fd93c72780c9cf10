"""What a node tells its ranks of the files that Spark distributed. The ranks' end is `rank/spark_files.py`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..rank import contract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")


def workers_files() -> dict[str, str]:
    """What ranks are told of Spark's files, in a Python worker: it has them on its own path."""
    try:
        from pyspark import SparkFiles

        root = SparkFiles._root_directory if SparkFiles._is_running_on_worker else None
    except ImportError:  # pyspark-client, which has no files
        root = None
    return environment(root, py_files_on(sys.path, root) if root else ())


def drivers_files(spark: SparkSession) -> dict[str, str]:
    """The same in the driver; a client of Spark Connect has no files of Spark's."""
    try:
        context = spark.sparkContext
        from pyspark import SparkFiles

        return environment(SparkFiles.getRootDirectory(), context._python_includes)
    except Exception as error:  # Spark Connect says in several ways that it has no SparkContext
        logger.debug("No files of Spark for local ranks: %s", error)
        return {}


def environment(root: str | None, py_files: Iterable[str]) -> dict[str, str]:
    """The variables that tell a rank about Spark's folder `root`, and what in there belongs on `sys.path`."""
    if not root:
        return {}
    names = [name for name in py_files if name and os.pathsep not in name]
    return {contract.ENV_SPARK_FILES: os.path.abspath(root), contract.ENV_PY_FILES: os.pathsep.join(names)}


def py_files_on(path: Sequence[str], root: str) -> list[str]:
    """Which entries of a worker's `sys.path` are py-files below `root`, in the order in which they were added."""
    folder = os.path.join(os.path.abspath(root), "")
    entries = map(os.path.abspath, path)  # in an executor the folder is "."
    found = [
        entry[len(folder) :] for entry in entries if entry.startswith(folder) and len(entry) > len(folder)
    ]
    return found[::-1]  # pyspark's workers put each before those that are there
