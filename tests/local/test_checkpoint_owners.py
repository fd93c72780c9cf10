"""Runs that have one folder for checkpoints, and no name: who finds whose, and who is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor, TrainingError

pytestmark = pytest.mark.timeout(200)


def function_of(module: str, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Callable[[], Any]:
    """`train` of a module that is new."""
    (folder / f"{module}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
    found: Callable[[], Any] = __import__(module).train
    return found


TRAIN = """
    from phalanx import checkpoint

    def train():
        before = checkpoint.latest()
        checkpoint.save({"of": __name__}, 5)
        return before
"""


def test_two_functions_of_one_name_never_find_each_others_checkpoints(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cats = function_of("of_cats", tmp_path, monkeypatch, TRAIN)
    dogs = function_of("of_dogs", tmp_path, monkeypatch, TRAIN)
    shared = tmp_path / "shared"
    distributor = TorchDistributor(use_gpu=False, checkpoint_dir=shared)
    assert distributor.run(cats) is None
    with pytest.raises(RuntimeError, match=r"of_cats.*of_dogs.*checkpoint_name"):
        distributor.run(dogs)
    assert distributor.run(cats) == (5, {"of": "of_cats"}), "CHECKPOINT-8"


def test_a_run_that_was_given_no_folder_is_refused_by_its_ranks_before_they_read_or_write(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster-wide folder: a run that saves nothing there isn't refused."""
    cats = function_of("of_cats", tmp_path, monkeypatch, TRAIN)
    dogs = function_of("of_dogs", tmp_path, monkeypatch, TRAIN)
    saves_nothing = function_of("of_birds", tmp_path, monkeypatch, "def train(): return 'nothing'")
    monkeypatch.setenv("PHALANX_CHECKPOINT_DIR", str(tmp_path / "shared"))
    distributor = TorchDistributor(use_gpu=False)
    assert distributor.run(cats) is None
    before = {path.name: path.read_bytes() for path in (tmp_path / "shared" / "train").iterdir()}
    with pytest.raises(TrainingError, match=r"of_cats.*but this run is .*of_dogs.*checkpoint_name='train'"):
        distributor.run(dogs)
    after = {path.name: path.read_bytes() for path in (tmp_path / "shared" / "train").iterdir()}
    assert after == before, "CHECKPOINT-8"
    assert distributor.run(saves_nothing) == "nothing"


def test_a_name_shares_and_an_edited_function_goes_on(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cats = function_of("of_cats", tmp_path, monkeypatch, TRAIN)
    dogs = function_of("of_dogs", tmp_path, monkeypatch, TRAIN)
    distributor = TorchDistributor(use_gpu=False, checkpoint_dir=tmp_path / "shared")
    assert distributor.run(cats) is None
    named = TorchDistributor(use_gpu=False, checkpoint_dir=tmp_path / "shared", checkpoint_name="train")
    assert named.run(dogs) == (5, {"of": "of_cats"})
    edited = function_of("of_cats", tmp_path, monkeypatch, "# edited\n\n" + textwrap.dedent(TRAIN))
    assert distributor.run(edited) == (5, {"of": "of_dogs"})
    told = json.loads((tmp_path / "shared" / "train" / "owner.json").read_text())
    assert (told["owner"]["kind"], told["owner"]["place"]) == ("module", "of_cats")


FILE = """
import phalanx
from phalanx import checkpoint
before = checkpoint.latest()
checkpoint.save(__file__, 5)
phalanx.set_result(before)
"""


def test_two_files_of_one_name_never_find_each_others_checkpoints(spark: Any, tmp_path: Path) -> None:
    for folder in ("cats", "dogs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(FILE)
    distributor = TorchDistributor(use_gpu=False, checkpoint_dir=tmp_path / "shared")
    assert distributor.run(tmp_path / "cats" / "train.py") is None
    with pytest.raises(RuntimeError, match=r"the file .*/cats/train\.py, .*the file .*/dogs/train\.py, "):
        distributor.run(tmp_path / "dogs" / "train.py")
    # What a run without Spark is called is the same.
    command = [sys.executable, "-m", "phalanx", "run", "--checkpoint-dir", str(tmp_path / "shared")]
    for folder, code in (("cats", 0), ("dogs", 2)):
        done = subprocess.run(
            [*command, "--no-gpu", "train.py"],
            cwd=tmp_path / folder,
            timeout=120,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
    assert "phalanx run: the checkpoints in " in done.stderr
