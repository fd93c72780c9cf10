"""Checkpoints: whole or absent, the newest first, and where they are."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from phalanx import checkpoint
from phalanx.checkpoint import place
from support.places import PYTHON

pytestmark = pytest.mark.timeout(200)


def test_the_newest_checkpoint_comes_back_and_older_ones_go(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert checkpoint.latest(directory=folder) is None
    for step in (5, 20, 100):
        checkpoint.save({"step": step}, step, directory=folder)
    assert checkpoint.latest(directory=folder) == (100, {"step": 100})
    assert sorted(os.listdir(folder)) == ["step-0000000020.pt", "step-0000000100.pt"]


def test_a_writer_that_is_killed_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder = str(tmp_path)
    checkpoint.save("whole", 1, directory=folder)
    # Dies while it writes: the state's own pickling kills the process when part of the file is out.
    program = f"""
        import os, signal
        from phalanx import checkpoint
        class Deadly:
            def __reduce__(self):
                os.kill(os.getpid(), signal.SIGKILL)
        checkpoint.save([bytes(1 << 20), Deadly()], 2, directory={folder!r})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"PYTHONPATH": str(PYTHON)},
        timeout=150,
    )
    assert done.returncode == -signal.SIGKILL
    assert checkpoint.latest(directory=folder) == (1, "whole"), "CHECKPOINT-1"


def test_whoever_reads_while_another_saves_finds_the_newest(tmp_path: Path) -> None:
    folder = str(tmp_path)
    checkpoint.save(0, 0, directory=folder)

    def save() -> None:
        for step in range(1, 200):
            checkpoint.save(step, step, directory=folder, keep=1)

    saving = threading.Thread(target=save)
    saving.start()
    steps = []
    while saving.is_alive():
        found = checkpoint.latest(directory=folder)
        assert found is not None
        assert found[0] == found[1]
        steps.append(found[0])
    saving.join()
    assert steps == sorted(steps)
    assert checkpoint.latest(directory=folder) == (199, 199)


def test_hosts_without_a_common_folder_are_told_before_they_resume_from_different_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(place, "_told", False)
    monkeypatch.delenv("PHALANX_CHECKPOINT_DIR", raising=False)
    monkeypatch.delenv("PHALANX_CHECKPOINT_NAME", raising=False)
    monkeypatch.setenv("PHALANX_RANK_DIR", str(tmp_path / "task" / "rank"))
    monkeypatch.setenv("PHALANX_JOB_FOLDERS", "2")
    with pytest.raises(RuntimeError, match="have 2 different folders for checkpoints"):
        checkpoint.latest()
    checkpoint.save("state", 1)
    checkpoint.save("state", 2)
    assert capsys.readouterr().err.count("spark.executorEnv.PHALANX_CHECKPOINT_DIR") == 1, "CHECKPOINT-2"
    assert checkpoint.latest(directory=checkpoint.checkpoint_dir()) == (2, "state")
    monkeypatch.setenv("PHALANX_CHECKPOINT_DIR", str(tmp_path / "shared"))
    assert checkpoint.latest() is None
    monkeypatch.delenv("PHALANX_CHECKPOINT_DIR")
    monkeypatch.setenv("PHALANX_JOB_FOLDERS", "1")
    assert checkpoint.latest() == (2, "state")
    assert capsys.readouterr().err == ""


def test_a_state_that_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        checkpoint.save(lambda: None, 1, directory=str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_disk_that_takes_no_more_is_an_os_error_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder = str(tmp_path)
    checkpoint.save("whole", 1, directory=folder)
    # As on a full disk: a file takes so many bytes and no more.
    program = f"""
        import resource, torch
        from phalanx import checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            checkpoint.save({{"weights": torch.zeros(1 << 20)}}, 2, directory={folder!r})
        except OSError as error:
            print("REFUSED", error.errno)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"PYTHONPATH": str(PYTHON)},
        timeout=150,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"REFUSED {errno.EFBIG}\n", done.stderr
    assert checkpoint.latest(directory=folder) == (1, "whole"), "CHECKPOINT-1"
    assert len(os.listdir(folder)) == 1


def test_the_folder_is_the_given_one_else_the_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "phalanx-1" / "task-0" / "rank-0"
    monkeypatch.setenv("PHALANX_RANK_DIR", str(own))
    assert checkpoint.checkpoint_dir() == str(tmp_path / "phalanx-1" / "checkpoints")
    monkeypatch.setenv("PHALANX_CHECKPOINT_DIR", str(tmp_path / "shared"))
    assert checkpoint.checkpoint_dir() == str(tmp_path / "shared")
    assert (tmp_path / "shared").is_dir()


def test_a_run_keeps_its_own_apart_in_a_shared_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PHALANX_RANK_DIR", str(tmp_path / "phalanx-1" / "task-0" / "rank-0"))
    monkeypatch.setenv("PHALANX_CHECKPOINT_DIR", str(tmp_path / "shared"))
    for name in ("cats", "dogs"):
        monkeypatch.setenv("PHALANX_CHECKPOINT_NAME", name)
        assert checkpoint.latest() is None, "CHECKPOINT-3"
        checkpoint.save(name, 7)
    assert checkpoint.latest() == (7, "dogs")
    assert checkpoint.latest(name="cats") == (7, "cats")
    assert os.listdir(tmp_path / "shared" / "cats") == ["step-0000000007.pt"]
    assert checkpoint.latest(directory=tmp_path / "shared" / "cats") == (7, "cats")
