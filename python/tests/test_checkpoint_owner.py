"""Whose a folder of checkpoints is: taken once, refused to others, shared by whoever gives a name."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from phalanx import checkpoint
from phalanx.checkpoint import layout, owner
from phalanx.plumbing.store import Store, open_store
from support.bare_store import BARE

pytestmark = pytest.mark.timeout(200)

ADA = {"user": "ada", "kind": "file", "place": "/home/ada/cats/train.py", "name": "train", "line": 0}
BOB = {**ADA, "user": "bob"}


@pytest.fixture(params=["folder", "memory", "bare"])
def directory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A shared folder for the checkpoints of all runs."""
    if request.param == "bare":
        monkeypatch.setenv("BARE_ROOT", str(tmp_path))
        exec(BARE, {})
    yield {"folder": f"{tmp_path}/shared", "memory": "memory://shared", "bare": "bare://shared"}[
        request.param
    ]
    if request.param == "memory":
        from fsspec.implementations.memory import MemoryFileSystem

        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def be(directory: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this process a rank of a run of this owner."""

    def be(whose: dict[str, Any] | None, *, name: str = "train") -> None:
        monkeypatch.setenv("PHALANX_RANK_DIR", "/x/y/z")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run of " + (whose or {"user": "nobody"})["user"])
        monkeypatch.setenv("PHALANX_CHECKPOINT_DIR", directory)
        monkeypatch.setenv("PHALANX_CHECKPOINT_NAME", name)
        monkeypatch.setenv("PHALANX_CHECKPOINT_OWNER", json.dumps(whose) if whose else "")

    return be


CALLS: list[Callable[[], Any]] = [
    lambda: checkpoint.latest(),
    lambda: checkpoint.save("bob's", 9),
    lambda: checkpoint.save_async("bob's", 9),
    lambda: checkpoint.save_sharded({"a": 2}, 9),
    lambda: checkpoint.save_sharded_async({"a": 2}, 9),
    lambda: checkpoint.load_sharded({"a": 2}),
]


def test_no_call_of_another_owner_reads_writes_or_removes_anything(
    directory: str, be: Callable[..., None]
) -> None:
    be(ADA)
    for step in (1, 2):
        checkpoint.save("ada's", step)
        checkpoint.save_sharded({"a": step}, step)
    store = open_store(f"{directory}/train")
    before = _everything(store)
    be(BOB)
    for call in CALLS:
        with pytest.raises(RuntimeError) as refused:
            call()
        said = str(refused.value)
        for part in ("`train` of the file /home/ada/cats/train.py", "run by ada", "run by bob"):
            assert part in said, "CHECKPOINT-8"
        assert "give it its own checkpoint_name, or checkpoint_name='train' to share them" in said
    assert _everything(store) == before, "CHECKPOINT-8"
    be(ADA)
    assert checkpoint.latest() == (2, "ada's")


@pytest.mark.parametrize("other", [{"place": "/home/ada/dogs/train.py"}, {"name": "Net.train"}, {"line": 3}])
def test_every_part_of_an_owner_counts(
    directory: str, be: Callable[..., None], other: dict[str, Any]
) -> None:
    be(ADA)
    checkpoint.save("ada's", 1)
    be({**ADA, **other})
    with pytest.raises(RuntimeError, match="checkpoint_name"):
        checkpoint.latest()


def test_whoever_gives_a_name_or_a_folder_shares(directory: str, be: Callable[..., None]) -> None:
    be(ADA)
    checkpoint.save("ada's", 1)
    be(BOB)
    assert checkpoint.latest(name="train") == (1, "ada's")
    assert checkpoint.latest(directory=f"{directory}/train") == (1, "ada's")
    be(None)
    assert checkpoint.latest() == (1, "ada's"), "the run was given the name"
    checkpoint.save("bob's", 2)
    be(ADA)
    assert checkpoint.latest() == (2, "bob's")


def test_the_owner_is_written_once_and_only_by_who_saves(directory: str, be: Callable[..., None]) -> None:
    store = open_store(f"{directory}/train")
    be(ADA)
    assert checkpoint.latest() is None
    assert _everything(store) == {}
    checkpoint.save("ada's", 1)
    with store.open("owner.json") as file:
        first = file.read()
    told = json.loads(first)
    assert (told["owner"], told["run"]) == (ADA, "run of ada")
    checkpoint.save("ada's", 2)
    with store.open("owner.json") as file:
        assert file.read() == first
    be(BOB, name="other")
    checkpoint.save_sharded({"a": 1}, 1)
    with open_store(f"{directory}/other").open("owner.json") as file:
        assert json.loads(file.read())["owner"] == BOB


@pytest.mark.parametrize("call", [CALLS[0], CALLS[1], CALLS[3]])
def test_checkpoints_without_an_owner_are_adopted_and_that_is_said(
    directory: str, be: Callable[..., None], call: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.save("somebody's", 1, directory=f"{directory}/train")
    be(ADA)
    call()
    said = f"phalanx: the checkpoints in {open_store(f'{directory}/train').path('')} had no owner; from now on they"
    assert said in capsys.readouterr().err, "CHECKPOINT-10"
    call()
    assert "owner" not in capsys.readouterr().err
    be(BOB)
    with pytest.raises(RuntimeError, match="run by ada"):
        call()


def test_of_many_that_begin_at_once_one_takes_the_folder(tmp_path: Path) -> None:
    for _ in range(20):
        _begin_at_once(str(tmp_path / os.urandom(4).hex()))


def _begin_at_once(path: str) -> None:
    made: list[int] = []
    seen: list[bytes] = []
    barrier = threading.Barrier(4)

    def make(number: int) -> None:
        store = open_store(path, layout.writer)
        barrier.wait(30)
        if store.create_new("owner.json", b"%d" % number * 4096):
            made.append(number)
        with store.open("owner.json") as file:
            seen.append(file.read())

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1, "PLUMBING-8"
    assert seen == [b"%d" % made[0] * 4096] * 4, "PLUMBING-8"
    assert os.listdir(path) == ["owner.json"]


def test_a_file_that_is_there_is_not_made_anew(directory: str) -> None:
    store = open_store(f"{directory}/train")
    assert store.create_new("owner.json", b"first")
    assert not store.create_new("owner.json", b"second")
    with store.open("owner.json") as file:
        assert file.read() == b"first", "PLUMBING-8"


def test_a_folder_that_has_no_second_names_has_one_maker_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(95, "Operation not supported")  # as a mounted volume

    monkeypatch.setattr(os, "link", link)
    store = open_store(str(tmp_path))
    assert store.create_new("owner.json", b"first")
    assert not store.create_new("owner.json", b"second")
    assert (tmp_path / "owner.json").read_bytes() == b"first", "PLUMBING-8"
    assert os.listdir(tmp_path) == ["owner.json"]


class LastWins:
    """A store in which two write at once, and the later one stays."""

    def __init__(self, store: Store, meanwhile: Callable[[], None]) -> None:
        self._store, self._meanwhile = store, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create_new(self, name: str, content: bytes) -> bool:
        made = self._store.create_new(name, content)
        self._meanwhile()
        return made


def test_who_was_written_over_learns_it_at_once_or_at_the_next_call(directory: str) -> None:
    store = open_store(f"{directory}/train")

    def bob_is_later() -> None:
        store.publish("owner.json", json.dumps({"version": 1, "owner": BOB}).encode())

    with pytest.raises(RuntimeError, match=r"run by bob, but this run is .* run by ada"):
        owner.check(LastWins(store, bob_is_later), ADA, takes=True)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="checkpoint_name"):
        owner.check(store, ADA, takes=True)  # CHECKPOINT-9
    owner.check(store, BOB, takes=True)


def test_what_a_killed_writer_left_of_the_owner_is_written_anew(
    directory: str, be: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "_WRITTEN_WITHIN_S", 0.2)
    store = open_store(f"{directory}/train")
    store.create_new("owner.json", b'{"version": 1, "own')
    be(ADA)
    checkpoint.save("ada's", 1)
    be(BOB)
    with pytest.raises(RuntimeError, match="run by ada"):
        checkpoint.latest()
    assert layout.unended([f"owner.json.part-{'1' * 8}{'2' * 8}"]) == {
        f"owner.json.part-{'1' * 8}{'2' * 8}": "1" * 8
    }


def test_an_owner_of_another_version_is_refused(directory: str, be: Callable[..., None]) -> None:
    told = json.dumps({"version": 7, "owner": ADA})
    open_store(f"{directory}/train").create_new("owner.json", told.encode())
    be(ADA)
    with pytest.raises(ValueError, match=r"owner\.json has version 7, but this Phalanx reads version 1"):
        checkpoint.latest()


def test_owners_are_said_as_people_know_them() -> None:
    assert owner.said({**ADA, "name": ""}) == "the file /home/ada/cats/train.py, run by ada"
    a_lambda = {**ADA, "kind": "module", "place": "cats", "name": "<lambda>", "line": 7}
    assert owner.said(a_lambda) == "`<lambda>` at line 7 of the module cats, run by ada"
    assert (
        owner.said({**ADA, "kind": "session", "place": ""}) == "`train` of an interactive session, run by ada"
    )


def _everything(store: Store) -> dict[str, bytes]:
    """All files, also those in folders."""
    found = {}
    for name in store.sizes():
        if name.endswith(".dist"):
            for inside in store.sizes(name):
                with store.open(f"{name}/{inside}") as file:
                    found[f"{name}/{inside}"] = file.read()
        else:
            with store.open(name) as file:
                found[name] = file.read()
    return found


def test_a_rank_of_an_attempt_that_is_over_saves_nothing_in_the_place_of_the_next_ones(
    be: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    be(ADA)
    attempt = partial(monkeypatch.setenv, "TORCHELASTIC_RESTART_COUNT")
    attempt("0")
    checkpoint.save("first", 1)
    attempt("1")
    assert checkpoint.latest() == (1, "first")
    saves: list[Callable[[], Any]] = [
        lambda: checkpoint.save("late", 9),
        lambda: checkpoint.save_async("late", 9).result(60),
        lambda: checkpoint.save_sharded({"a": 2}, 9),
        lambda: checkpoint.save_sharded_async({"a": 2}, 9).result(60),
    ]
    attempt("0")
    for save in saves:
        with pytest.raises(RuntimeError, match="of attempt 1 of its run, and attempt 2 has begun from"):
            save()
    attempt("1")
    assert checkpoint.latest() == (1, "first"), "CHECKPOINT-12"
    checkpoint.save("second", 2)
    attempt("2")
    assert checkpoint.latest() == (2, "second")
    be(ADA)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a later run")
    attempt("0")
    checkpoint.save("third", 3)
    assert checkpoint.latest() == (3, "third"), "CHECKPOINT-12: it has attempts of its own"
