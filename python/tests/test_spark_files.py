"""Spark's files in a rank: imports, SparkFiles, and what a node tells its ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx.request.payload import function_payload
from phalanx.stages.spark_files import environment, py_files_on
from support.one_rank import RankRun
from support.spark_files import shipped

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(150)


def test_a_rank_imports_what_pysparks_workers_import_in_their_order(
    run_rank: RunRank, tmp_path: Path
) -> None:
    def train() -> Any:
        import sys

        import of_py  # type: ignore[import-not-found]
        import of_zip  # type: ignore[import-not-found]

        return of_py.WHERE, of_zip.WHERE, sys.path, "pyspark" in sys.modules

    env = shipped(tmp_path / "files")
    end = run_rank(function_payload(train, (), {}, sys_path=["/the/callers"]), **env)
    assert end.code == 0, end.err
    of_py, of_zip, path, imported = end.result
    assert (of_py, of_zip, imported) == ("py", "second.egg", False), "RANK-28, RANK-30"
    root = str(tmp_path / "files")
    assert path[:4] == [f"{root}/second.egg", f"{root}/first.zip", f"{root}/of_py.py", root]


def test_sparkfiles_works_in_a_rank(run_rank: RunRank, tmp_path: Path) -> None:
    def train() -> str:
        import inspect

        from pyspark import SparkFiles
        from pyspark.core import files

        assert SparkFiles.getRootDirectory() == os.path.dirname(SparkFiles.get("data.txt"))
        assert "class SparkFiles" in inspect.getsource(files), "the module is whole"
        with open(SparkFiles.get("data.txt")) as file:
            return file.read()

    end = run_rank(function_payload(train, (), {}, sys_path=[]), **shipped(tmp_path / "files"))
    assert end.code == 0, end.err
    assert end.result == "forty-two", "RANK-29"


def test_without_sparks_files_nothing_is_touched(run_rank: RunRank) -> None:
    def train() -> list[str]:
        import sys

        return [type(finder).__module__ for finder in sys.meta_path]

    assert environment(None, ["a.zip"]) == {}
    end = run_rank(function_payload(train, (), {}, sys_path=[]))
    assert "phalanx.rank.spark_files" not in end.result


def test_a_workers_py_files_are_read_from_its_path() -> None:
    path = ["", "/s/files/late.zip", "/s/files/early.egg", "/s/files", "/s/files2/other.zip", "/usr/lib"]
    assert py_files_on(path, "/s/files") == ["early.egg", "late.zip"]
    # In executors Spark's folder is the working directory, and is called so.
    assert py_files_on(["/s", "./late.zip", "./early.egg", ".", "", "/usr/lib"], ".") == [
        "early.egg",
        "late.zip",
    ]
    assert environment("rel", ["a.zip", "b:c.zip", ""]) == {
        "PHALANX_SPARK_FILES": os.path.join(os.getcwd(), "rel"),
        "PHALANX_PY_FILES": "a.zip",
    }
