"""Pickles run code of whoever wrote them: whose `latest` and `load_sharded` read."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from phalanx import checkpoint
from phalanx.plumbing.store import open_store
from torch.distributed.checkpoint import CheckpointException

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:.*weights_only"),
]

STRANGER = 54321
PLAIN = {"weights": torch.arange(4.0), "step": 5, "lr": [0.1], "text": "a", "none": None}


class Runs:
    """Makes a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture
def memory() -> Iterator[str]:
    from fsspec.implementations.memory import MemoryFileSystem

    yield "memory://shared/train"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def strangers(tmp_path: Path) -> str:
    """A folder of a colleague's, who is another user of the system."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    folder = tmp_path / "shared"
    folder.mkdir()
    return str(folder)


def give_away(folder: str) -> None:
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(at, name), STRANGER, STRANGER)


def be_rank_of(monkeypatch: pytest.MonkeyPatch, run: str, *, attempt: int = 0) -> None:
    monkeypatch.setenv("PHALANX_RANK_DIR", "/x/y/z")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))


def test_a_colleagues_pickle_is_refused_until_it_is_trusted(
    strangers: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_rank_of(monkeypatch, "theirs")
    path = checkpoint.save({"a": 1, "b": Runs(str(mark))}, 3, directory=strangers)
    give_away(strangers)
    be_rank_of(monkeypatch, "ours")
    with pytest.raises(pickle.UnpicklingError) as refused:
        checkpoint.latest(directory=strangers)
    assert not mark.exists(), "CHECKPOINT-11"
    assert f"{path} has more than tensors and plain values" in str(refused.value)
    assert "call latest(trusted=True)" in str(refused.value)
    found = checkpoint.latest(directory=strangers, trusted=True)
    assert found is not None
    assert (found[0], found[1]["a"]) == (3, 1)
    assert mark.exists()


def test_tensors_and_plain_values_are_read_whoever_wrote_them(
    strangers: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (strangers, memory):
        be_rank_of(monkeypatch, "theirs")
        checkpoint.save(PLAIN, 3, directory=where)
        checkpoint.save_sharded(PLAIN, 3, directory=where)
        give_away(strangers)
        be_rank_of(monkeypatch, "ours")
        found = checkpoint.latest(directory=where)
        assert found is not None
        assert (found[0], found[1]["weights"].tolist(), found[1]["lr"]) == (3, [0, 1, 2, 3], [0.1])
        state = {"weights": torch.zeros(4), "step": 0, "lr": [0.0], "text": "", "none": 1}
        assert checkpoint.load_sharded(state, directory=where) == 3
        assert (state["step"], state["lr"], state["text"], state["none"]) == (5, [0.1], "a", None)


def test_a_runs_own_pickle_is_read_in_its_later_attempts_whoever_the_file_system_says_it_is(
    strangers: str, memory: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a mounted volume, whose files are all nobody's."""
    for where in (strangers, memory):
        be_rank_of(monkeypatch, "ours")
        checkpoint.save(Runs(str(mark)), 3, directory=where)
        checkpoint.save_sharded({"a": Runs(str(mark))}, 3, directory=where)
        give_away(strangers)
        be_rank_of(monkeypatch, "ours", attempt=2)
        assert checkpoint.latest(directory=where) == (3, None)
        mark.rmdir()
        assert checkpoint.load_sharded({"a": 0}, directory=where) == 3
        mark.rmdir()
        be_rank_of(monkeypatch, "another")
        with pytest.raises(pickle.UnpicklingError, match="neither this run nor this user"):
            checkpoint.latest(directory=where)
        with pytest.raises(CheckpointException, match=r"load_sharded\(trusted=True\)"):
            checkpoint.load_sharded({"a": 0}, directory=where)
        assert not mark.exists(), "CHECKPOINT-11"


def test_a_users_own_pickle_is_read_by_his_other_runs_where_files_have_users(
    tmp_path: Path, memory: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (str(tmp_path / "shared"), memory):
        be_rank_of(monkeypatch, "yesterday")
        checkpoint.save(Runs(str(mark)), 3, directory=where)
    be_rank_of(monkeypatch, "today")
    assert checkpoint.latest(directory=tmp_path / "shared") == (3, None)
    mark.rmdir()
    with pytest.raises(pickle.UnpicklingError, match=r"latest\(trusted=True\)"):
        checkpoint.latest(directory=memory)
    assert not mark.exists(), "CHECKPOINT-11"
    assert checkpoint.latest(directory=memory, trusted=True) == (3, None)


def test_a_process_outside_of_a_run_reads_back_what_it_wrote(memory: str, mark: Path) -> None:
    checkpoint.save(Runs(str(mark)), 3, directory=memory)
    assert checkpoint.latest(directory=memory) == (3, None)


def test_a_sharded_checkpoint_runs_nothing_while_it_is_described(
    strangers: str, memory: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata are a pickle, too, which torch reads as one."""
    for where in (strangers, memory):
        be_rank_of(monkeypatch, "theirs")
        path = os.path.basename(checkpoint.save_sharded({"a": torch.ones(2)}, 3, directory=where))
        store = open_store(where)
        with store.open(f"{path}/.metadata") as file:
            size = len(file.read())
        evil = pickle.dumps(Runs(str(mark)))
        store.publish(
            f"{path}/.metadata", evil + bytes(size - len(evil))
        )  # of the size that the manifest has
        give_away(strangers)
        be_rank_of(monkeypatch, "ours")
        with pytest.raises(CheckpointException, match=r"load_sharded\(trusted=True\)"):
            checkpoint.load_sharded({"a": torch.zeros(2)}, directory=where)
        assert not mark.exists(), "CHECKPOINT-11"


def test_a_signed_file_is_still_one_of_torchs(tmp_path: Path) -> None:
    path = checkpoint.save(PLAIN, 3, directory=tmp_path)
    assert torch.load(path)["weights"].tolist() == [0, 1, 2, 3]
    assert torch.load(path, mmap=True)["weights"].tolist() == [0, 1, 2, 3]
    assert zipfile.ZipFile(path).testzip() is None
    checkpoint.save_async(PLAIN, 4, directory=tmp_path).result(60)
    assert zipfile.is_zipfile(tmp_path / "step-0000000004.pt")
