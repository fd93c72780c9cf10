"""What a rank needs of cloudpickle: that it is there is known when the rank is ready, that it differs is named."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from phalanx.spark import jar
from support.one_rank import RankRun, script, sent
from support.places import PYTHON

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(120)

JAR = Path(jar.expected_path())


def at_start(folder: Path, text: str) -> dict[str, str]:
    """The environment of a Python that runs `text` before anything else."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{PYTHON}"}


def test_a_host_without_it_is_named_before_the_training_begins(run_rank: RunRank, tmp_path: Path) -> None:
    env = at_start(tmp_path / "site", "import sys; sys.modules['cloudpickle'] = None")
    end = run_rank(script(tmp_path, "open('began', 'w')"), cwd=tmp_path, **env)
    assert (end.code, end.error["type_name"], end.error["before_start"]) == (1, "ModuleNotFoundError", True)
    assert "train.py can't bring back its result on " in end.error["message"]
    assert "there is no module 'cloudpickle' there" in end.error["message"]
    assert not (tmp_path / "began").exists()


def test_a_caller_in_the_jvm_needs_none(run_rank: RunRank, tmp_path: Path) -> None:
    env = at_start(tmp_path / "site", "import sys; sys.modules['cloudpickle'] = None")
    payload = script(tmp_path, "import phalanx; phalanx.set_result({'a': 1})")
    end = run_rank(payload.replace(b'"kind"', b'"results": "json", "kind"'), **env)
    assert (end.code, (end.directory / "result").read_bytes()) == (0, b'json\n{"a": 1}')


def test_another_version_is_named(run_rank: RunRank, tmp_path: Path) -> None:
    class Loads:
        def __reduce__(self) -> Any:
            return exec, ("raise AttributeError('_make_function')",)

    env = at_start(tmp_path / "site", "import cloudpickle; cloudpickle.__version__ = '0.9'")
    end = run_rank(sent(lambda: 7), **env)
    assert end.result == 7
    versions = f"cloudpickle is {cloudpickle.__version__} at the caller and 0.9 on "
    assert end.err.startswith(f"phalanx: {versions}")
    end = run_rank(sent(lambda _: 7, Loads()), **env)
    assert end.code == 1
    assert versions in end.error["message"]
    assert run_rank(sent(lambda: 7)).err == ""


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Any]:
    """A module that only the caller has."""
    (tmp_path / "only_at_caller.py").write_text("class Model:\n  size = 9\ndef train(): return Model.size\n")
    sys.path.insert(0, str(tmp_path))
    import only_at_caller  # type: ignore[import-not-found]

    yield only_at_caller
    sys.path.remove(str(tmp_path))
    del sys.modules["only_at_caller"]


def test_what_pyspark_ships_by_value_goes_by_value(run_rank: RunRank, shipped: Any) -> None:
    from pyspark import cloudpickle as pysparks

    before = cloudpickle.list_registry_pickle_by_value()
    assert run_rank(sent(shipped.train)).error["type_name"] == "ModuleNotFoundError"
    pysparks.register_pickle_by_value(shipped)
    try:
        end = run_rank(sent(shipped.train))
    finally:
        pysparks.unregister_pickle_by_value(shipped)
    assert (end.code, end.result) == (0, 9), end.err
    assert cloudpickle.list_registry_pickle_by_value() == before, "the caller's own list is as it was"


@pytest.mark.skipif(not JAR.exists(), reason="the jar is not built; `make build` does it")
def test_the_jar_brings_one_for_executors_that_have_none(tmp_path: Path) -> None:
    with zipfile.ZipFile(JAR) as archive:
        index = archive.read("python/index").decode().split()
        for name in index:
            archive.extract(f"python/{name}", tmp_path)
    assert "cloudpickle/LICENSE" in index
    home, rank = tmp_path / "python", tmp_path / "rank"
    rank.mkdir()
    payload = tmp_path / "payload"
    payload.write_bytes(script(tmp_path, "import phalanx; phalanx.set_result(lambda: 7)"))
    boot = f"import sys; sys.path.append({str(home)!r}); from phalanx.rank.entry import main; main()"
    env = {"PHALANX_PAYLOAD": str(payload), "PHALANX_RANK_DIR": str(rank), "PHALANX_NOTES_FD": "-1"}
    # -S: a Python without any installed packages.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", boot], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert cloudpickle.loads((rank / "result").read_bytes())() == 7
