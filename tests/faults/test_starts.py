"""Faults before the training code runs, in what it needs: the interpreter, the modules, the memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from phalanx import TrainingError
from support.cgroup import Cgroup
from support.places import APPS
from support.programs import ONE_EXECUTOR, Program, classic_conf, eventually, private_folders
from support.tiers import whole
from support.trainer import Trainer, take

pytestmark = pytest.mark.timeout(180)

FACES = ["local", "python", "jvm"]
SOON_S = 60.0
LIMIT_MIB = 3072  # of memory, for a driver, its pools and two ranks

# What is done when a rank imports the module of the training function.
IMPORTS = {
    "missing": (
        None,
        "start",
        r"raised ModuleNotFoundError: train can't be read back on HOST: there is no module 'MODULE' .*",
    ),
    "raises": (
        "raise ValueError('no license')",
        "start",
        r"raised PayloadError: train can't be read back on HOST: ValueError: no license",
    ),
    "exits": ("raise SystemExit(3)", "start", r"raised SystemExit: 3"),
    "vanishes": ("os._exit(3)", "exit_code", r"exited with code 3"),
    "vanishes with 0": (
        "os._exit(0)",
        "exit_code",
        r"exited with code 0: its training code had not returned.*",
    ),
    "is killed": ("os.kill(os.getpid(), 9)", "signal", r"was ended by SIGKILL"),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's that no other test has, on the caller's path."""
    path = tmp_path / f"module_of_{tmp_path.name}.py".replace("-", "_")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield path
    sys.modules.pop(path.stem, None)


def function_of(module: Path, when_imported: str | None) -> Any:
    """The module's function; in rank 1, that its import does something else; None: that it isn't there."""
    text = "import os, time\ndef train():\n    time.sleep(600)\n"
    module.write_text(text)
    train = __import__(module.stem).train
    if when_imported is None:
        module.unlink()
        # Its byte code would do, too.
        shutil.rmtree(module.parent / "__pycache__", ignore_errors=True)
    else:
        module.write_text(f"{text}if os.environ.get('RANK') == '1':\n    {when_imported}\n")
    return train


@pytest.mark.parametrize("what", IMPORTS)
@pytest.mark.parametrize("face", FACES)
def test_a_module_of_the_users_that_fails_in_a_rank_is_told(
    face: str, what: str, two_ranks: Callable[[str], Any], module: Path, spark: Any
) -> None:
    when_imported, kind, says = IMPORTS[what]
    train = function_of(module, when_imported)
    run = two_ranks(face).start(train)
    with pytest.raises(TrainingError) as told:
        run.result(SOON_S)
    error = told.value
    assert error.kind == kind, error
    pattern = says.replace("HOST", re.escape(socket.gethostname())).replace("MODULE", module.stem)
    assert re.fullmatch(rf"rank [01] \(\S+\) {pattern}", error.message), error
    assert error.rank == 1 or what == "missing"
    eventually("no file but the logs is left", 10, lambda: not private_folders(spark))
    assert two_ranks(face).run(os.getcwd)


def ends_at_its_start(which: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has interpreters that tests start from now on end with exit code 7 before any code of Phalanx, if `which`."""
    (folder / "sitecustomize.py").write_text(f"import os\nif {which}:\n    os._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_an_interpreter_that_ends_at_its_start_is_the_ranks_end(
    two_ranks: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_at_its_start("os.environ.get('RANK') == '1'", tmp_path, monkeypatch)
    with pytest.raises(TrainingError, match=r"rank 1 \(\S+\) exited with code 7") as told:
        two_ranks("local-cold").run(os.getcwd)
    assert told.value.kind == "exit_code"


def test_a_pool_that_ends_at_its_start_leaves_ranks_cold(
    two_ranks: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_at_its_start("'PHALANX_POOL' in os.environ", tmp_path, monkeypatch)
    assert two_ranks("local").run(os.getcwd) == os.getcwd()


@whole("drivers of their own")
def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "bin" / "python")
    env = {"DRIVER_CONF": json.dumps(classic_conf(ONE_EXECUTOR)), "PYSPARK_PYTHON": missing}
    with Program(
        [sys.executable, APPS / "smoke.py", "2", "jvm", "python"], tmp_path / "out", env=env
    ) as driver:
        assert driver.ends(150) == 0, driver.text
    seen = driver.printed("SMOKE")
    message = seen["jvm"]["error"]
    assert re.search(
        rf'rank [01] \(\S+\) could not be started: can\'t start "{missing}": no such file', message
    ), message
    message = seen["python"]["error"]
    assert re.search(rf'the Spark stage failed: .*Cannot run program "{missing}"', message), message


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    """A driver in a memory cgroup, whose rank 1 takes memory when it may."""
    cgroup = Cgroup(f"phalanx-test-{os.getpid()}", LIMIT_MIB << 20)
    if cgroup.problem:
        pytest.skip(f"no memory cgroup can be made here: {cgroup.problem}")
    command = ["sh", "-c", f'echo $$ >{cgroup.path}/cgroup.procs && exec "$@"', "sh", sys.executable]
    env = {"DRIVER_CONF": json.dumps(classic_conf("local[2]"))}
    try:
        with Trainer(
            APPS / "greedy.py", tmp_path_factory.mktemp("greedy"), "jvm", command=command, env=env
        ) as driver:
            yield driver
    finally:
        cgroup.remove()


@pytest.mark.parametrize("face", FACES)
def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_told_so_and_the_next_run_works(
    face: str, limited: Trainer
) -> None:
    for _ in range(2):
        limited.trains(face)
        take(limited, LIMIT_MIB)
        kind, rank, _, text = json.loads(limited.is_over(60).removeprefix("FAILED "))
        assert (kind, rank) == ("out_of_memory", 1), text
        assert re.match(
            r"rank 1 \(\S+\) was killed by the kernel because memory ran out: .* spark.executor.memoryOverhead",
            text,
        ), text
