"""`scripts/gpu_check`: its runner, and all that needs no GPU, so that it is ready for the first machine with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import ROOT
from support.programs import eventually, gone
from support.tiers import whole

from gpu import check

SCRIPT = str(ROOT / "scripts" / "gpu_check")
OWN = """
import os, subprocess, sys, time
sys.path.insert(0, {tests!r})
from gpu import check

@check.check("right")
def right(): return "as it should be"
@check.check("wrong")
def wrong(): assert False, "it is\\nnot so"
@check.check("crashes")
def crashes(): os.abort()
@check.check("hangs", limit_s=1)
def hangs():
    print(subprocess.Popen(["sleep", "100"]).pid, flush=True)
    time.sleep(100)
@check.check("elsewhere")
def elsewhere(): raise check.Skip("there is none here")
@check.check("on a card", needs_gpu=True)
def on_a_card(): return "never"

if __name__ == "__main__":
    check.make(*sys.argv[1:])
"""


@pytest.mark.timeout(60)
def test_whatever_a_check_does_is_a_line_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "CHECKS", [])
    program = tmp_path / "checks.py"
    program.write_text(OWN.format(tests=str(ROOT / "tests")))
    exec(compile(program.read_text(), str(program), "exec"), {"__name__": "checks"})
    words = [sys.executable, str(program)]
    folder = tmp_path / "out"
    check.run(check.CHECKS, folder, program=words, has_gpu=False, within_s=60, facts={"gpu": "none"})
    told = json.loads((folder / "gpu-check.json").read_text())
    assert [(one["name"], one["outcome"], one["told"]) for one in told["checks"]] == [
        ("right", "ok", "as it should be"),
        ("wrong", "FAILED", "AssertionError: it is not so"),
        ("crashes", "FAILED", "its process ended with -6; crashes.log has its output"),
        ("hangs", "FAILED", "no end within 1 s; hangs.log has its output"),
        ("elsewhere", "skipped", "there is none here"),
        ("on a card", "skipped", "there is no GPU here"),
    ], "TEST-9"
    assert [one["device"] for one in told["checks"]] == ["cpu"] * 4 + [""] * 2, "TEST-11"
    assert told["gpu"] == "none"
    started = int((folder / "hangs.log").read_text().split()[0])
    eventually("what it started has ended", 10, lambda: gone([started]))
    assert len(capsys.readouterr().out.splitlines()) == 6
    check.run(check.CHECKS[:2], folder, program=words, has_gpu=False, within_s=0, facts={})
    told = json.loads((folder / "gpu-check.json").read_text())
    assert [one["told"] for one in told["checks"]] == ["0 s were over"] * 2, "TEST-10"


def test_results_are_a_table_for_the_page_of_gpus(tmp_path: Path) -> None:
    facts = {
        name: name.upper() for name in ("date", "gpu", "driver", "torch", "cuda", "nccl", "python", "cores")
    }
    one = check.Outcome("hang", "ok", "a|b", 3.25, "cuda")
    (tmp_path / "told.json").write_text(json.dumps({**facts, "checks": [one._asdict()]}))
    words = [sys.executable, SCRIPT, "--table", str(tmp_path / "told.json")]
    table = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout
    assert table.splitlines()[0].startswith("DATE: gpu GPU, driver DRIVER")
    assert table.splitlines()[-1] == "| `hang` | ok | 3.2 s | a\\|b |"


@whole("a machine without a GPU")
@pytest.mark.timeout(400)
def test_all_that_needs_no_gpu_is_proved_here(tmp_path: Path) -> None:
    env = {**os.environ, "OUT": str(tmp_path / "out"), "CUDA_VISIBLE_DEVICES": ""}
    # However slow the machine is: that it ends in five minutes is the runner's to see to (TEST-10).
    words = [sys.executable, SCRIPT, "--within", "380"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=395, env=env)
    told = json.loads((tmp_path / "out" / "gpu-check.json").read_text())
    failed = [one for one in told["checks"] if one["outcome"] == "FAILED"]
    assert (done.returncode, failed) == (0, []), done.stdout + done.stderr
    if told["gpu"] == "none":
        skipped = {one["name"] for one in told["checks"] if one["outcome"] == "skipped"}
        assert skipped == {
            *("nccl-one-rank", "phalanx-beside-nccl", "visible-devices", "lease"),
            *("out-of-memory", "assert-in-a-kernel", "scoring-halves"),
        }, "TEST-11"
