"""`make demo`'s program, as a stranger sees it who has the wheel."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from support.installed import Installed
from support.places import PYTHON
from support.programs import output_of
from support.tiers import whole

DEMO = PYTHON / "examples" / "demo.py"
PHASES = ["submit", "join", "first line of user code", "process group ready", "training", "return"]


@pytest.fixture(scope="module")
def output(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> str:
    elsewhere: Path = tmp_path_factory.mktemp("demo")
    return output_of([installed.python, DEMO], env=installed.env, within=500, folder=elsewhere)


@whole("an installed wheel, and `make demo`")
@pytest.mark.timeout(600)
def test_both_ranks_print_live_lines_with_their_number(output: str) -> None:
    for rank in (0, 1):
        assert re.search(rf"^\[rank {rank}\] epoch 10 of 10: loss", output, re.MULTILINE), output


@whole("an installed wheel, and `make demo`")
def test_the_trained_network_is_accurate_and_agrees_with_one_process(output: str) -> None:
    ranks = re.search(r"^2 ranks on Spark +(\d\.\d+)$", output, re.MULTILINE)
    alone = re.search(r"^1 process +(\d\.\d+)$", output, re.MULTILINE)
    assert ranks, output
    assert alone, output
    assert float(ranks[1]) >= 0.95
    assert abs(float(ranks[1]) - float(alone[1])) <= 0.02
    assert f"test accuracy: {ranks[1]} " in output


@whole("an installed wheel, and `make demo`")
def test_the_table_has_every_phase_of_both_runs_once_and_its_times_ascend(output: str) -> None:
    number = r"(\d+\.\d\d)"
    rows = re.findall(rf"^(\S[\w ]*?) {{2,}}{' +'.join([number] * 4)}   ", output, re.MULTILINE)
    assert [name for name, *_ in rows] == PHASES, output
    for took, reached in ((1, 2), (3, 4)):
        at = [float(row[reached]) for row in rows]
        assert at == sorted(at)
        assert at[-1] == pytest.approx(sum(float(row[took]) for row in rows), abs=0.04)


def test_a_poor_network_fails_the_demo_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(DEMO.parent))
    demo = importlib.import_module("demo")
    assert demo.verdict(0.97, 0.96) == 0
    assert demo.verdict(0.94, 0.94) == 1
    assert "below 0.95" in capsys.readouterr().err
    assert demo.verdict(0.98, 0.955) == 1
    assert "they should agree" in capsys.readouterr().err
