"""A training file in a rank finds what `python FILE` gives it, whatever path leads to it."""

from __future__ import annotations

import py_compile
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from phalanx.request.payload import file_payload
from support import as_python
from support.one_rank import RankRun

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("kind", as_python.KINDS)
def test_a_file_finds_what_python_gives_it(
    run_rank: RunRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder, out = tmp_path / "project", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    file = as_python.made(folder)[kind]
    monkeypatch.chdir(folder)
    payload = file_payload(file, [out, "--lr", 0.1], sys_path=[])
    expected = as_python.by_python(file, folder, out, "--lr", "0.1")
    end = run_rank(payload, cwd=folder)
    assert end.code == 0, end.err
    assert as_python.found(out, 0)["found"] == expected, "RANK-37"
    # From where that path leads nowhere, or to another file.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    expected = as_python.by_python(f"{folder}/{file}" if file[0] != "/" else file, folder, out, "--lr", "0.1")
    end = run_rank(payload, cwd=elsewhere)
    assert end.code == 0, end.err
    assert as_python.found(out, 0)["found"] == expected, "RANK-37"


@pytest.mark.parametrize(
    "kind", ["file that is a link.py", "folder that is a link/../train.py", "archive.zip", "./program//"]
)
def test_a_file_that_a_host_lacks_is_the_rank_s_own_copy(
    run_rank: RunRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder, out = tmp_path / "project", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    file = as_python.made(folder)[kind]
    monkeypatch.chdir(folder)
    at_the_caller = as_python.by_python(file, folder, out)
    payload = file_payload(file, [out], sys_path=[])
    (folder / file / "__main__.py" if (folder / file).is_dir() else folder / file).unlink()
    end = run_rank(payload, cwd=folder)
    assert end.code == 0, end.err
    found = as_python.found(out, 0)["found"]
    own = end.directory / "script" / Path(file).name
    assert found["argv"] == [str(own), str(out)], "RANK-37"
    assert found["file"].startswith(str(own))
    assert found["path"] == (str(own) if kind == "archive.zip" else at_the_caller["path"])
    assert found["sibling"] == at_the_caller["sibling"]
    assert found["sources"] == at_the_caller["sources"]
    assert found["main"]
    shutil.rmtree(folder)
    # Where the folder is not there, either, its own is first.
    end = run_rank(payload, cwd=tmp_path)
    assert ("No module named 'sibling'" in end.err) == (kind != "archive.zip"), end.err


def test_a_folder_that_only_the_rank_s_host_has_is_a_program(
    run_rank: RunRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "project", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    as_python.made(folder)
    payload = file_payload("program", [out], sys_path=[], elsewhere=True)
    end = run_rank(payload, cwd=folder)
    assert end.code == 0, end.err
    found = as_python.found(out, 0)["found"]
    assert found == as_python.by_python("program", folder, out), "RANK-37"
    (folder / "program" / "__main__.py").unlink()
    end = run_rank(payload, cwd=folder)
    assert f"there is no training file {folder}/program on " in end.error["message"]


def test_a_folder_runs_as_its_caller_has_it(run_rank: RunRank, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    main = folder / "__main__.py"
    main.write_text("import phalanx\nphalanx.set_result('other')\n")
    py_compile.compile(str(main), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    main.write_text("import phalanx\nphalanx.set_result((__spec__.name, __file__))\n")
    end = run_rank(file_payload(folder, (), sys_path=[]))
    assert (end.code, end.result) == (0, ("__main__", str(main))), "RANK-19"
    main.write_text("def train(:\n  pass")
    end = run_rank(file_payload(folder, (), sys_path=[]))
    assert (end.code, end.error["type_name"], end.error["before_start"]) == (1, "SyntaxError", False)
    assert "def train(:" in end.err


def test_a_zip_file_without_a_main_is_no_training_file(run_rank: RunRank, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("train.py", "")
    end = run_rank(file_payload(tmp_path / "data.zip", (), sys_path=[]))
    assert (end.code, end.error["type_name"]) == (1, "PayloadError")
    assert "data.zip can't run on " in end.error["message"]
    assert "a zip file without a __main__" in end.error["message"]
