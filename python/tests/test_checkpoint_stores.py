"""Checkpoints in whatever fsspec opens, and what is left of one whose writer was killed at any moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from phalanx import checkpoint
from phalanx.checkpoint import layout, whole
from support import tiers
from support.bare_store import BARE
from support.places import PYTHON

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("BARE_ROOT", str(tmp_path))
    exec(BARE, {})
    return "bare://models/digits"


@pytest.fixture
def memory() -> Any:
    from fsspec.implementations.memory import MemoryFileSystem

    yield "memory://models/digits"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(params=["folder", "file", "local", "memory", "bare"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("memory", "bare"):
        return str(request.getfixturevalue(request.param))
    return {"folder": "", "file": "file://", "local": "local:"}[request.param] + str(tmp_path)


def test_every_store_keeps_the_newest_and_what_was_just_saved(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_told", False)
    assert checkpoint.latest(directory=place) is None
    for step in (10, 990, 1000):
        path = checkpoint.save({"step": step}, step, directory=place)
    assert checkpoint.latest(directory=place) == (1000, {"step": 1000})
    assert f"step-{1000:010d}" in path
    assert capsys.readouterr().err == ""
    low = checkpoint.save({"step": 10}, 10, directory=place)
    names = _names(place)
    assert os.path.basename(low) in names, "CHECKPOINT-4"
    assert sorted({int(name[5:15]) for name in names}) == [10, 990, 1000]
    assert "step 10 is saved, but another run has left step 1000 there" in capsys.readouterr().err
    checkpoint.save({"step": 20}, 20, directory=place)
    assert sorted({int(name[5:15]) for name in _names(place)}) == [20, 990, 1000], (
        "the space that it takes has an end"
    )
    # The same step again: the new one counts, and the old one goes.
    checkpoint.save({"step": "again"}, 1000, directory=place)
    assert checkpoint.latest(directory=place) == (1000, {"step": "again"})
    assert (
        len([name for name in _names(place) if name.startswith("step-0000001000") and name.endswith(".pt")])
        == 1
    )


def test_a_name_keeps_models_apart(place: str) -> None:
    checkpoint.save("a cat", 7, directory=place, name="cats")
    checkpoint.save("a dog", 9, directory=place, name="dogs")
    assert checkpoint.latest(directory=place, name="cats") == (7, "a cat"), "CHECKPOINT-3"
    assert checkpoint.latest(directory=place, name="dogs") == (9, "a dog")
    assert checkpoint.latest(directory=place) is None
    with pytest.raises(ValueError, match="letters, digits"):
        checkpoint.save("", 1, directory=place, name="../cats")
    with pytest.raises(ValueError, match="at most 100 bytes"):
        checkpoint.save("", 1, directory=place, name="ü" * 51)


def test_an_asynchronous_save_has_what_was_there_when_it_was_called(place: str) -> None:
    import torch

    state = {"weights": torch.ones(1000)}
    saving = checkpoint.save_async(state, 3, directory=place)
    state["weights"].zero_()
    assert saving.result(60)
    assert saving.done
    saved = checkpoint.latest(directory=place)
    assert saved is not None
    assert saved[0] == 3
    assert saved[1]["weights"].sum() == 1000
    with pytest.raises(Exception, match="pickle"):
        checkpoint.save_async(lambda: None, 4, directory=place)


def test_sharded_checkpoints_come_back_from_every_store(place: str) -> None:
    import torch

    state = {"weights": torch.arange(10.0), "step": 5}
    path = checkpoint.save_sharded(state, 5, directory=place)
    saving = checkpoint.save_sharded_async(state, 6, directory=place)
    state["weights"].zero_()
    saving.result(60)
    state["step"] = 0
    assert checkpoint.load_sharded(state, directory=place) == 6
    assert state["weights"].tolist() == list(range(10))
    assert state["step"] == 5
    checkpoint.save_sharded(state, 7, directory=place)
    assert os.path.basename(path) not in _names(place), "two stay"
    with pytest.raises(RuntimeError, match="are sharded; load them with `load_sharded` on all ranks"):
        checkpoint.latest(directory=place)


def test_the_manifest_says_what_there_is(bare: str, tmp_path: Path) -> None:
    checkpoint.save("state", 4, directory=bare)
    checkpoint.save_sharded({"a": 1}, 4, directory=bare)
    found = {}
    for path in (tmp_path / "models" / "digits").glob("*.json"):
        told = json.loads(path.read_text())
        found[told["kind"]] = told
    assert found["whole"]["step"] == found["sharded"]["step"] == 4
    assert found["sharded"]["ranks"] == 1
    ((name, size),) = found["whole"]["files"].items()
    assert (tmp_path / "models" / "digits" / name).stat().st_size == size
    assert {".metadata", "__0_0.distcp"} == set(found["sharded"]["files"])


def test_what_lacks_a_part_is_passed_over(bare: str, tmp_path: Path) -> None:
    checkpoint.save("whole", 1, directory=bare)
    path = tmp_path / "models" / "digits" / os.path.basename(checkpoint.save("cut", 2, directory=bare))
    path.write_bytes(path.read_bytes()[:-1])
    assert checkpoint.latest(directory=bare) == (1, "whole")
    manifest = Path(f"{path}.json")
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"version": 9}))
    with pytest.raises(ValueError, match="manifest has version 9"):
        checkpoint.latest(directory=bare)


def test_a_save_in_the_background_that_fails_is_raised_by_the_next_call(
    bare: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.save("whole", 1, directory=bare)
    folder = tmp_path / "models" / "digits"
    folder.rename(tmp_path / "away")
    folder.write_text("in the way")
    failed = checkpoint.save_async("lost", 2, directory=bare)
    with pytest.raises(OSError, match="digits"):
        checkpoint.latest(directory=bare)
    assert "phalanx: step 2 can't be saved: " in capsys.readouterr().err, "CHECKPOINT-7"
    folder.unlink()
    (tmp_path / "away").rename(folder)
    assert checkpoint.latest(directory=bare) == (1, "whole"), "it is told once"
    with pytest.raises(OSError, match="digits"):
        failed.result(60)


def test_a_later_save_waits_for_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.plumbing.store import FolderStore

    go_on, settled = threading.Event(), FolderStore.create

    def slow(self: FolderStore, name: str) -> Any:
        if name == "step-0000000001.pt":
            go_on.wait(60)
        return settled(self, name)

    monkeypatch.setattr(FolderStore, "create", slow)
    first = checkpoint.save_async("first", 1, directory=str(tmp_path))
    later = threading.Thread(target=checkpoint.save, args=("second", 2), kwargs={"directory": str(tmp_path)})
    later.start()
    assert not first.done
    assert os.listdir(tmp_path) == []
    go_on.set()
    later.join(60)
    assert first.done
    assert sorted(os.listdir(tmp_path)) == ["step-0000000001.pt", "step-0000000002.pt"], "CHECKPOINT-6"


def test_fsspec_is_imported_for_a_uri_only(tmp_path: Path) -> None:
    program = f"""
        import sys
        from phalanx.plumbing.store import open_store
        for path in ({str(tmp_path)!r}, "file://{tmp_path}", "local:{tmp_path}", "dbfs:/Volumes/a/b/c"):
            open_store(path)
        assert "fsspec" not in sys.modules and "torch" not in sys.modules, "PLUMBING-5"
        open_store("memory://x")
        assert "fsspec" in sys.modules
    """
    environment = os.environ | {"PYTHONPATH": str(PYTHON)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, timeout=100, check=True)


@pytest.mark.parametrize("kind", ["folder", pytest.param("bare", marks=tiers.whole("another store"))])
def test_what_is_found_is_whole_at_whatever_moment_the_writer_is_killed(kind: str, tmp_path: Path) -> None:
    """One process imports torch and forks a writer for each moment; the last of them isn't killed."""
    program = BARE + textwrap.dedent("""
        import io, signal, sys
        import torch
        from phalanx import checkpoint
        from phalanx.checkpoint import layout
        from phalanx.plumbing import store, whole_file

        os.environ.update(PHALANX_RANK_DIR="/x/y/z", TORCHELASTIC_RUN_ID="j", TORCHELASTIC_RESTART_COUNT="0")
        torch.set_num_threads(1)
        kind, folder = sys.argv[1:]
        moments = 0
        def moment(*_):
            global moments
            moments -= 1
            if moments == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        Bare.at_write = staticmethod(moment)
        for module, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (os, "rmdir")):
            def before(*args, _call=getattr(module, name), **options):
                moment()
                return _call(*args, **options)
            setattr(module, name, before)

        def whole(state, step): checkpoint.save(state, step, directory=place)
        def background(state, step): checkpoint.save_async(state, step, directory=place).result()
        def sharded(state, step): checkpoint.save_sharded(state, step, directory=place)
        def sharded_background(state, step): checkpoint.save_sharded_async(state, step, directory=place).result()

        for save in (whole, background, sharded, sharded_background):
            place = f"{'bare:/' if kind == 'bare' else ''}{folder}/{save.__name__}"
            def found():
                if save in (whole, background):
                    saved = checkpoint.latest(directory=place)
                    return saved and (saved[0], saved[1]["weights"].mean().item(), saved[1]["step"])
                state = {"weights": torch.zeros(4096), "step": 0}
                step = checkpoint.load_sharded(state, directory=place)
                return step and (step, state["weights"].mean().item(), state["step"])
            def state(step): return {"weights": torch.full((4096,), float(step)), "step": step}
            save(state(1), 1); save(state(2), 2)
            newest, killed, at = 2, 0, 1
            while True:
                pid = os.fork()
                if pid == 0:
                    # a rank of an attempt of its own
                    os.environ.update(TORCHELASTIC_RESTART_COUNT=str(at))
                    moments = at
                    save(state(3), 3)
                    os._exit(0)
                _, status = os.waitpid(pid, 0)
                step, mean, told = found()
                assert step == mean == told and step >= newest, (save.__name__, at, step, mean, told, newest)
                newest = step
                if os.WIFEXITED(status):
                    assert os.WEXITSTATUS(status) == 0
                    break
                killed, at = killed + 1, at + 1
            names = os.listdir(f"{folder}/{save.__name__}")
            steps = sorted(int(name[5:15]) for name in names if not name.endswith(".json"))
            assert newest == 3 and steps == [2, 3], (save.__name__, names)
            print(save.__name__, "killed", killed)
        """)
    environment = os.environ | {"PYTHONPATH": str(PYTHON), "BARE_ROOT": "/"}
    done = subprocess.run(
        [sys.executable, "-c", program, kind, str(tmp_path)],
        env=environment,
        timeout=150,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    killed = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(killed) == 4
    assert min(killed) >= 4, f"CHECKPOINT-1: {done.stdout}"


class Meanwhile:
    """Calls something when it is pickled, which is in the middle of a save."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        self.call()
        return str, ("pickled",)


@pytest.mark.parametrize("save", [checkpoint.save, checkpoint.save_sharded])
def test_a_run_that_saves_leaves_alone_what_another_one_is_writing(
    place: str, save: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_saves() -> None:
        _be_rank_of(monkeypatch, "j2")
        save({"state": "other"}, 2, directory=place)
        _be_rank_of(monkeypatch, "j1")

    _be_rank_of(monkeypatch, "j1")
    save({"state": Meanwhile(other_saves)}, 3, directory=place)
    found: dict[str, Any] = {"state": ""}
    if save is checkpoint.save:
        assert checkpoint.latest(directory=place) == (3, {"state": "pickled"}), "CHECKPOINT-5"
    else:
        assert checkpoint.load_sharded(found, directory=place) == 3, "CHECKPOINT-5"
    assert {int(name[5:15]) for name in _names(place)} == {2, 3}


def test_what_another_run_left_goes_when_it_is_a_day_old_and_what_an_earlier_attempt_left_at_once(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem
    from phalanx.plumbing.store import open_store

    def begin(store: Any) -> set[str]:
        """As a save that is killed after its first file."""
        data = layout.next_entry([], 9, layout.SHARDED).data
        with store.create(f"{data}/part") as file:
            file.write(b"begun")
        return {data}

    def age(hours: float) -> None:
        at = time.time() - hours * 3600
        for path in [*tmp_path.rglob("*"), tmp_path]:
            os.utime(path, (at, at))
        for file in MemoryFileSystem.store.values():
            file.modified = datetime.fromtimestamp(at, tz=timezone.utc)

    for where in (str(tmp_path), memory):
        store = open_store(where)
        _be_rank_of(monkeypatch, "j1")
        other = begin(store)
        _be_rank_of(monkeypatch, "j2", attempt=1)
        earlier = begin(store)
        _be_rank_of(monkeypatch, "j2", attempt=2)
        own = begin(store)
        for step, hours, left in ((1, 0, other | own), (2, 23, other | own), (3, 25, own)):
            assert earlier <= set(_names(where)) or step > 1
            age(hours)
            checkpoint.save("state", step, directory=where)
            there = {name for name in _names(where) if "-0000000009-" in name}
            assert there == left, f"CHECKPOINT-5: {where}, {hours} hours"


def test_names_are_read_back_and_the_highest_steps_stay() -> None:
    entry = layout.Entry(3, 2, "ab" * 8, layout.SHARDED)
    plain = layout.Entry(9, 0, "", layout.WHOLE, plain=True)
    assert layout.entries([entry.manifest, plain.data, "other"], layout.SHARDED) == [entry]
    assert layout.entries([entry.manifest, plain.data], layout.WHOLE) == [plain]
    assert layout.entries([entry.data], layout.SHARDED) == [], "without a manifest it is none"
    assert layout.next_entry([entry.manifest], 3, layout.SHARDED).generation == 3
    part, data = f"step-0000000001.pt.part-{'1' * 8}{'2' * 8}", f"step-0000000001-0001-{'3' * 8}{'2' * 8}.pt"
    assert layout.unended([part, data, plain.data, "other"]) == {part: "1" * 8, data: "3" * 8}
    assert layout.unended([data, f"{data}.json"]) == {}
    for step in (-1, 10**10):
        with pytest.raises(ValueError, match="has to be 0 to 9999999999"):
            layout.check_step(step)


def _be_rank_of(monkeypatch: pytest.MonkeyPatch, run: str, *, attempt: int = 0) -> None:
    monkeypatch.setenv("PHALANX_RANK_DIR", "/x/y/z")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))


def _names(place: str) -> list[str]:
    from phalanx.plumbing.store import open_store

    return sorted(open_store(place).sizes())
