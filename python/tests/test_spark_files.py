"""Spark's files in a rank: imports, SparkFiles, and what a node tells its ranks."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx.driver.payload import function_payload
from phalanx.stages.spark_files import environment, py_files_on
from support.one_rank import RankRun
from support.own_session import in_session

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(150)


def shipped(folder: Path) -> dict[str, str]:
    """A folder as Spark fills it: a file, a module, a zip and an egg with modules; and the variables for a rank."""
    folder.mkdir()
    (folder / "data.txt").write_text("forty-two")
    (folder / "of_py.py").write_text("WHERE = 'py'\n")
    for name in ("first.zip", "second.egg"):
        with zipfile.ZipFile(folder / name, "w") as file:
            file.writestr("of_zip.py", f"WHERE = {name!r}\n")
    return environment(str(folder), ["of_py.py", "first.zip", "second.egg"])


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
    assert (of_py, of_zip, imported) == ("py", "second.egg", False), "FILES-1, FILES-3"
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
    assert end.result == "forty-two", "FILES-2"


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


@pytest.mark.parametrize("local_mode", [True, False])
def test_files_of_a_session_reach_its_ranks(tmp_path: Path, local_mode: bool) -> None:
    shipped(tmp_path / "at_the_caller")
    text = f"""
        import os, sys
        from phalanx import TorchDistributor

        def train():
            import os, sys
            import of_py, of_zip
            from pyspark import SparkFiles
            inside = [os.path.dirname(m.__file__) for m in (of_py, of_zip)]
            root = SparkFiles.getRootDirectory()
            return of_py.WHERE, of_zip.WHERE, inside == [root, os.path.join(root, "first.zip")], open(
                SparkFiles.get("data.txt")
            ).read()

        folder = {str(tmp_path / "at_the_caller")!r}
        spark.sparkContext.addFile(os.path.join(folder, "data.txt"))
        spark.sparkContext.addPyFile(os.path.join(folder, "of_py.py"))
        spark.sparkContext.addPyFile(os.path.join(folder, "first.zip"))
        # in a process of its own, the driver's path has them as well
        sys.path[:] = [p for p in sys.path if "userFiles" not in p]
        distributor = TorchDistributor(num_processes=1, local_mode={local_mode}, use_gpu=False)
        answer = distributor.run(train)
    """
    assert in_session("local[1]", text) == ["py", "first.zip", True, "forty-two"]
    assert sys.modules.get("of_zip") is None
