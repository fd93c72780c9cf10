"""A training that has returned has not failed, however its process ends then, over each stage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from phalanx import TrainingError
from support.tiers import differs

pytestmark = [pytest.mark.timeout(150), pytest.mark.behaviour]

OWN_EXIT = "import atexit, os; atexit.register(os._exit, 3)"
ABORT_IN_C = "import ctypes; libc = ctypes.CDLL(None); libc.on_exit(libc.abort, None)"


@differs("python", "local", "local-cold", why="a rank is forked from a pool, or starts by itself")
def test_what_a_process_does_after_its_function_has_returned_fails_nothing(
    distributor: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(ends: list[str]) -> str:
        exec(ends[int(os.environ["RANK"])])
        return f"result {os.environ['RANK']}"

    run = distributor.start(train, [OWN_EXIT, ABORT_IN_C])
    assert run.results(90) == ["result 0", "result 1"], "NODE-55"
    assert [rank.state for rank in run.ranks] == ["finished", "finished"]
    out = capsys.readouterr().out
    for rank, how in ((0, "exited with code 3"), (1, "was ended by SIGABRT")):
        line = f"[phalanx] rank {rank} had returned its result, and then its process {how}\n"
        assert out.count(line) == 1, f"DRIVER-49: {out}"


def test_how_a_file_without_a_result_ends_is_how_it_ends_in_python(distributor: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN_EXIT)
    with pytest.raises(TrainingError, match="exited with code 3"):
        distributor.run(str(tmp_path / "train.py"))
    (tmp_path / "train.py").write_text(f"import phalanx; phalanx.set_result(7); {OWN_EXIT}")
    assert distributor.run(str(tmp_path / "train.py")) == 7, "NODE-55"
