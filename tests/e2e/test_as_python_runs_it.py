"""What training code finds in a rank is what it finds in a program that Python runs, over each stage."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from support import as_python
from support.tiers import differs, whole

pytestmark = [pytest.mark.timeout(300), pytest.mark.behaviour]


@whole("what python/tests/test_run_command.py has")
def test_a_training_file_finds_what_python_gives_it_whatever_path_leads_to_it(
    distributor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    files = as_python.made(folder)
    monkeypatch.chdir(folder)
    runs = []
    for number, (kind, file) in enumerate(files.items()):
        out = tmp_path / f"out{number}"
        out.mkdir()
        distributor.run(file, out, "--lr", 0.1)
        runs.append((kind, file, out))
    for kind, file, out in runs:
        seen = as_python.found(out, 1)
        # A relative path leads to the file in local mode; executors have working directories of their own.
        named = file if seen["cwd"] == str(folder) else os.path.join(folder, file)
        assert seen["found"] == as_python.by_python(named, folder, out, "--lr", "0.1"), f"{kind!a}: RANK-37"


@differs("local", why="a rank is forked from a pool")
def test_a_function_finds_the_sources_of_its_script(
    distributor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(as_python.SOURCES)
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    # What is run here as the program, so that it is the caller's main.
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(as_python.SOURCES, str(script), "exec"), vars(main))
    here = vars(main)["texts"]()
    assert here[0] == "class Net:\n    lr = 3\n"
    for results in distributor.start(vars(main)["texts"]).results(90):
        assert results == here, "RANK-23"


def test_a_function_has_its_name_where_programs_have_theirs(distributor: Any) -> None:
    def words() -> list[str]:
        import sys

        return sys.argv

    assert distributor.start(words).results(90) == [["words"], ["words"]], "RANK-23"
