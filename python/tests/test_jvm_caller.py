"""What a caller in the JVM sends, and what it gets: modules, and results as bytes or JSON."""

from __future__ import annotations

import json
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.one_rank import RankRun

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(60)


def from_jvm(kind: str, name: str, *args: str, source: str = "", **fields: Any) -> bytes:
    """A payload as the JVM writes it: no Python, no sys.path, results as bytes or JSON."""
    header = {"kind": kind, "name": name, "args": args, "results": "json", **fields}
    return b"phalanx payload 1\n" + json.dumps(header).encode() + b"\n" + textwrap.dedent(source).encode()


def leaves(run_rank: RunRank, value: str, **options: Any) -> RankRun:
    text = f"import phalanx, numpy\nphalanx.set_result({value})"
    return run_rank(from_jvm("file", "train.py", source=text, path="/at/the/driver/train.py"), **options)


def package(folder: Path) -> Path:
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "train.py").write_text(
        "import sys\n"
        "from . import VALUE\n"
        "def double(n): return n * VALUE\n"
        "if __name__ == '__main__':\n"
        "    import multiprocessing, phalanx\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        doubled = pool.map(double, [1, 2])\n"
        "    me = sys.modules['__main__']\n"
        "    phalanx.set_result([sys.argv, doubled, me.__spec__.name, me.__package__, me.__file__ == sys.argv[0]])\n"
    )
    (folder / "pkg" / "__init__.py").write_text("VALUE = 2\n")
    return folder


def test_a_module_runs_as_main_with_its_arguments(run_rank: RunRank, tmp_path: Path) -> None:
    folder = package(tmp_path / "src")
    end = run_rank(from_jvm("module", "pkg.train", "--lr", "0.1"), PYTHONPATH=str(folder))
    assert end.code == 0, end.err
    kind, _, text = (end.directory / "result").read_bytes().partition(b"\n")
    argv = [str(folder / "pkg" / "train.py"), "--lr", "0.1"]
    assert (kind, json.loads(text)) == (b"json", [argv, [2, 4], "pkg.train", "pkg", True]), "RANK-23"
    assert end.notes == ["rank ready", "user code"]


def test_a_package_runs_by_its_main_also_from_a_zip(run_rank: RunRank, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as file:
        file.writestr("pkg/__init__.py", "")
        file.writestr("pkg/__main__.py", "import phalanx; phalanx.set_result(__spec__.name)")
    end = run_rank(from_jvm("module", "pkg"), PYTHONPATH=str(tmp_path / "code.zip"))
    assert end.code == 0, end.err
    assert (end.directory / "result").read_bytes() == b'json\n"pkg.__main__"'


def test_a_module_runs_whatever_python_its_caller_has(run_rank: RunRank, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys, phalanx; phalanx.set_result(sys.argv[1:])")
    end = run_rank(from_jvm("module", "train", "--lr", python="2.7"), PYTHONPATH=str(tmp_path))
    assert end.code == 0, end.err
    assert (end.directory / "result").read_bytes() == b'json\n["--lr"]'


@pytest.mark.parametrize("name", ["nowhere", "json.nowhere", "nowhere.at.all", "json"])
def test_a_module_that_is_not_there_is_named_with_the_remedy(run_rank: RunRank, name: str) -> None:
    end = run_rank(from_jvm("module", name))
    assert (end.code, end.error["before_start"], end.error["type_name"]) == (1, True, "ModuleNotFoundError")
    assert f"{name} can't run on " in end.error["message"]
    assert "--py-files" in end.error["message"]


def test_an_exception_of_a_module_is_the_modules_own(run_rank: RunRank, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_thing\n")
    end = run_rank(from_jvm("module", "broken"), PYTHONPATH=str(tmp_path))
    assert (end.code, end.error["before_start"]) == (1, False)
    assert "import no_such_thing" in end.error["traceback"]
    assert "phalanx" not in end.error["traceback"], "RANK-9"


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("b'\\x00weights'", b"bytes\n\x00weights"),
        ("bytearray(b'w')", b"bytes\nw"),
        ("memoryview(numpy.zeros((0, 2)))", b"bytes\n"),
        ("{'loss': 0.5, 'steps': [1, 2]}", b'json\n{"loss": 0.5, "steps": [1, 2]}'),
        ("'caf\\u00e9'", b'json\n"caf\\u00e9"'),
        ("False", b"json\nfalse"),
    ],
)
def test_bytes_come_as_they_are_and_all_else_as_json(run_rank: RunRank, value: str, left: bytes) -> None:
    end = leaves(run_rank, value)
    assert end.code == 0, end.err
    assert (end.directory / "result").read_bytes() == left
    assert end.left - {"script"} == {"owed", "result"}, "RANK-26"


def test_nothing_set_leaves_nothing(run_rank: RunRank) -> None:
    end = leaves(run_rank, "None")
    assert (end.code, end.left - {"script"}) == (0, set()), "RANK-4"


def test_what_is_neither_fails_rank_0_only(run_rank: RunRank) -> None:
    end = leaves(run_rank, "{1, 2}")
    assert (end.code, end.error["type_name"]) == (1, "UnwritableResult")
    neither = "the value that train.py gave to set_result (a set) is neither bytes nor JSON"
    assert end.error["message"].startswith(neither), "RANK-27"
    other = leaves(run_rank, "{1, 2}", rank=1)
    assert other.code == 0
    assert (other.directory / "result").read_text().startswith(f"unavailable\nrank 1: {neither}"), "RANK-27"


def test_another_ranks_value_beyond_the_limit_stays_behind(run_rank: RunRank) -> None:
    end = leaves(run_rank, "bytes(2000)", PHALANX_MAX_RESULT_BYTES="1000")
    assert (end.directory / "result").stat().st_size > 2000
    other = leaves(run_rank, "bytes(2000)", rank=1, PHALANX_MAX_RESULT_BYTES="1000")
    assert (end.code, other.code) == (0, 0)
    assert (other.directory / "result").read_text() == (
        "unavailable\nrank 1: the value that train.py gave to set_result is larger than 1000 bytes "
        "(spark.phalanx.results.maxBytes)"
    )
