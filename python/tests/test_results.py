"""Results at the driver that can't be read back there."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from phalanx import MissingResultError, TrainingError, UnavailableResult
from phalanx.rank import results as ranks_results
from phalanx.run import results as drivers_results
from phalanx.run.results import Results

pytestmark = pytest.mark.timeout(100)


def held(tmp_path: Path, *values: object) -> Results:
    """What the driver holds of ranks that returned these."""
    for rank, value in enumerate(values):
        folder = tmp_path / str(rank)
        folder.mkdir()
        ranks_results.write_result(value, str(folder), rank=0, max_bytes=0, what="the value")
    results = Results(len(values), str(tmp_path))
    results.keep(SimpleNamespace(result_path=lambda rank: str(tmp_path / str(rank) / "result")))  # type: ignore[arg-type]
    return results


@pytest.fixture
def ranks_only(monkeypatch: pytest.MonkeyPatch) -> type:
    """A class of a module that can be written, and not be read back."""
    module = ModuleType("ranks_only")
    made = type("Model", (), {"__module__": "ranks_only", "__qualname__": "Model"})
    vars(module)["Model"] = made
    monkeypatch.setitem(sys.modules, "ranks_only", module)
    return made


def test_the_versions_that_differ_are_named_and_the_others_not(
    tmp_path: Path, ranks_only: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ranks_results.versions()
    theirs = here | {"Python": "3.99.0", "torch": "1.0", "no_such_package": "7"}
    monkeypatch.setattr(ranks_results, "versions", lambda: theirs)
    results = held(tmp_path, ranks_only())
    del sys.modules["ranks_only"]
    with pytest.raises(TrainingError, match="rank 0 succeeded, but its result can't be read") as caught:
        results.load(0)
    said = str(caught.value)
    assert "ModuleNotFoundError: No module named 'ranks_only'; Python is 3.99.0 at the rank and " in said
    assert f"{here['Python']} here; torch is 1.0 at the rank and " in said, "RUN-15"
    assert "; no_such_package is 7 at the rank and missing here; " in said
    assert "cloudpickle" not in said, "it is the same"


@pytest.mark.parametrize("damage", [b"", b"\nno JSON", b"\n[1]"])
def test_a_file_without_versions_is_an_error_without_them(tmp_path: Path, damage: bytes) -> None:
    results = held(tmp_path, None)
    Path(results._path(0)).write_bytes(b"no pickle" + damage)
    with pytest.raises(TrainingError, match=r"UnpicklingError: [^;]*; its pickle is /"):
        results.load(0)
    assert isinstance(results.load_what_there_is()[0], UnavailableResult)


def test_where_nothing_can_be_linked_the_pickle_is_where_it_was(
    tmp_path: Path, ranks_only: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(drivers_results.os, "link", refuse)
    results = held(tmp_path, ranks_only())
    del sys.modules["ranks_only"]
    with pytest.raises(TrainingError) as caught:
        results.load(0)
    assert f"its pickle is {results._path(0)} until" in str(caught.value)


def test_a_value_that_is_missing_is_an_error_that_has_the_others(tmp_path: Path) -> None:
    results = held(tmp_path, ["fine"], UnavailableResult("rank 1: its result doesn't pickle"), {"a": 1})
    with pytest.raises(MissingResultError) as caught:
        results.load_all()
    missing = UnavailableResult("rank 1: its result doesn't pickle")
    assert str(caught.value) == (
        "the training succeeded, but the result of rank 1 is missing: rank 1: its result doesn't pickle. The others "
        "are in this error's `results`, and in `run.results(strict=False)`"
    )
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert error.results == [["fine"], missing, {"a": 1}]
        assert error.missing == {1: missing.reason}
        assert str(error) == str(caught.value)
    assert results.load_all(strict=False) == [["fine"], missing, {"a": 1}]
    shutil.rmtree(results._files.name)
    with pytest.raises(TrainingError, match="were removed when the Spark application stopped"):
        results.load_all(strict=False)
