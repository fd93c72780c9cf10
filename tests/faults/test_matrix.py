"""The fault matrix: one of two ranks misbehaves, at each point of its life, over each stage.

TEST-5 (names-culprit): the error names the rank that misbehaved, and how, and never its victim.
TEST-6 (ends): the run ends by itself. How soon it ends is asserted where nothing else runs beside: `test_ends.py`.
TEST-7 (nothing-left): nothing is left: no process, no guard, no file but the logs.
TEST-8 (next-run-works): the next run works, and its ranks come from the same warm pools.

Which cells are there? Each misdeed occurs `while its peer computes`, which is the plainest case. A misdeed that the
peer notices by itself could be blamed on the peer. So it also occurs while the peer joins the process group, and while
it reduces by each backend. Misdeeds for which these moments differ from others also occur in return and in an exit
handler. What ends no rank (a closed stdout, a daemon) is nothing that a peer could notice. Faults before the training
code are in `test_starts.py`. Faults of executors, workers and the driver are in `test_ends.py`.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import misdeeds
import psutil
import pytest
from phalanx import TrainingError, UnavailableResult
from support.programs import eventually, gone, private_folders
from support.tiers import whole

pytestmark = pytest.mark.timeout(180)

FACES = ("local", "python", "jvm")
WITH_COLD = (*FACES, "local-cold")
# A start that is cold, on a busy machine, needs most of this.
SOON_S = 60.0
HANG_S = 3

COMPUTES, JOINS = "while its peer computes", "while its peer joins"
GLOO, PHALANX = "while its peer reduces by gloo", "while its peer reduces by phalanx"
RETURN, EXIT = "in return", "in an exit handler"


@dataclass(frozen=True)
class Cell:
    """A misdeed of one rank at one point, and what the caller is told."""

    misdeed: str
    phase: str
    kind: str = ""
    says: str = ""
    """A pattern: what the message says of the rank."""
    culprit: int = 1
    faces: tuple[str, ...] = FACES
    hang_timeout: bool = False
    blamed: int | None = None
    """The rank that is named, where it is not the culprit."""

    @property
    def peers_state(self) -> str:
        """A pattern: how the other rank ended."""
        if self.phase in (RETURN, EXIT) or self.blamed is not None:
            return "finished"
        return "stopped" if self.phase in (COMPUTES, JOINS) else "stopped|raised .*"

    def __str__(self) -> str:
        whose = "" if self.culprit == 1 else "rank-0-"
        return whose + f"{self.misdeed}-{self.phase}".replace(" ", "_")


RAISED = r"raised ValueError: the labels are wrong"
KILLED, SEGFAULT = "was ended by SIGKILL", "was ended by SIGSEGV"
NO_END = r"exited with code 0: its training code had not returned.*"
HANGS = r"hangs: no running rank has made progress for 3\.0s"
STOPPED = HANGS + "; its process is stopped"

CELLS = [
    Cell("raises", COMPUTES, "exception", RAISED, faces=WITH_COLD),
    Cell("raises", JOINS, "exception", RAISED),
    Cell("raises", GLOO, "exception", RAISED),
    Cell("raises", PHALANX, "exception", RAISED),
    Cell("raises", PHALANX, "exception", RAISED, culprit=0),
    Cell("raises", RETURN, "exception", r"raised UnpicklableError: .*: the labels are wrong", culprit=0),
    Cell("exits_with_3", COMPUTES, "exit_code", "exited with code 3"),
    Cell("exits_with_3", GLOO, "exit_code", "exited with code 3"),
    Cell("exits_with_3", PHALANX, "exit_code", "exited with code 3"),
    Cell("exits_with_a_sentence", COMPUTES, "exit_code", "exited with code 1"),
    Cell("vanishes_with_3", JOINS, "exit_code", "exited with code 3"),
    Cell("vanishes_with_3", GLOO, "exit_code", "exited with code 3", culprit=0),
    Cell("vanishes_with_3", PHALANX, "exit_code", "exited with code 3"),
    Cell("vanishes_with_0", COMPUTES, "exit_code", NO_END, faces=WITH_COLD),
    Cell("vanishes_with_0", GLOO, "exit_code", NO_END),
    Cell("vanishes_with_0", PHALANX, "exit_code", NO_END, culprit=0),
    Cell(
        "exits_early", JOINS, "hang", HANGS + "; rank 1 had already succeeded.*", blamed=0, hang_timeout=True
    ),
    Cell(
        "exits_early", GLOO, "exception", r"raised RuntimeError: .*; rank 1 had already succeeded.*", blamed=0
    ),
    Cell(
        "exits_early",
        PHALANX,
        "exception",
        r"raised NativeError: .*; rank 1 had already succeeded.*",
        blamed=0,
    ),
    Cell("is_killed", COMPUTES, "signal", KILLED),
    Cell("is_killed", JOINS, "signal", KILLED, faces=WITH_COLD),
    Cell("is_killed", GLOO, "signal", KILLED, culprit=0),
    Cell("is_killed", PHALANX, "signal", KILLED),
    Cell("is_killed", RETURN, "signal", KILLED),
    Cell("is_killed", RETURN, "signal", KILLED, culprit=0),
    Cell("crashes", COMPUTES, "signal", SEGFAULT),
    Cell("is_stopped", COMPUTES, "hang", STOPPED, hang_timeout=True),
    Cell("is_stopped", PHALANX, "hang", STOPPED, hang_timeout=True),
    Cell("is_stopped", EXIT, "hang", STOPPED, hang_timeout=True),
    Cell("hoards", COMPUTES, "exception", "raised MemoryError.*", faces=WITH_COLD),
    Cell("hoards", PHALANX, "exception", "raised MemoryError.*"),
    Cell("closes_stdout_and_raises", COMPUTES, "exception", RAISED),
    Cell("closes_all_output_and_raises", COMPUTES, "exception", RAISED, faces=WITH_COLD),
    Cell("floods_and_raises", COMPUTES, "exception", RAISED),
    Cell("leaves_a_daemon_and_raises", COMPUTES, "exception", RAISED, faces=WITH_COLD),
]
# Misdeeds that are no failure.
HARMLESS = [
    Cell("exits_early", COMPUTES, faces=WITH_COLD),  # sys.exit() is an end as good as any
    Cell("raises", EXIT, faces=WITH_COLD),  # Python prints what exit handlers raise
    Cell("closes_stdout", COMPUTES, faces=WITH_COLD),
    Cell("leaves_a_daemon", COMPUTES, faces=WITH_COLD),
    Cell("leaves_a_daemon", EXIT, faces=WITH_COLD),
    # Its result is there.
    Cell("vanishes_with_3", EXIT),
    Cell("is_killed", EXIT, faces=WITH_COLD),
]


def by_face(cells: Sequence[Cell]) -> list[Any]:
    """Each cell with each of its faces, one face after the other: Spark ends Python workers that are long idle.

    `make test` runs each misdeed at one phase, the first that is listed."""
    first = {cell.misdeed: cell for cell in reversed(cells)}
    return [
        pytest.param(
            face, cell, id=f"{face}-{cell}", marks=() if cell is first[cell.misdeed] else whole(cell.phase)
        )
        for face in WITH_COLD
        for cell in cells
        if face in cell.faces
    ]


class Sink(io.StringIO):
    """A stdout that keeps nothing, so that what grows is not the test's own copy of the output."""

    def write(self, text: str) -> int:
        return len(text)


@pytest.fixture
def after(spark: Any, tmp_path: Path, two_ranks: Callable[[str], Any]) -> Callable[..., None]:
    """What holds after every fault, given the face and the phase."""

    def check(face: str, phase: str) -> None:
        noted = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("[01]"))]
        assert len(noted) == 2
        pids = [one["pid"] for one in noted]
        if (daemon := tmp_path / "daemon").exists():
            pids.append(int(daemon.read_text()))
        eventually("TEST-7: no rank and no child of one is alive", 10, lambda: gone(pids))
        eventually("no file but the logs is left", 10, lambda: not private_folders(spark))
        # Each cold rank would import torch for it, which is most of a test's time.
        collectively = face != "local-cold" or phase in (JOINS, GLOO, PHALANX)
        again = two_ranks(face).start(misdeeds.ends_well, collectively).results(SOON_S)
        assert not collectively or [one["sum"] for one in again] == [2, 2], "TEST-8"
        assert {one["pool"] for one in again} == {one["pool"] for one in noted}, "TEST-8"
        assert all(one["pool"] for one in again) == (face != "local-cold")

    return check


@pytest.mark.parametrize(("face", "cell"), by_face(CELLS))
def test_a_fault_of_one_rank_is_told_as_it_was(
    face: str,
    cell: Cell,
    two_ranks: Callable[[str], Any],
    after: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    distributor = two_ranks(face)
    if cell.hang_timeout:
        distributor.options = distributor.options.with_changes(hang_timeout=HANG_S)
    monkeypatch.setattr("sys.stdout", Sink())
    memory = psutil.Process().memory_info().rss
    run = distributor.start(misdeeds.train, str(tmp_path), cell.culprit, cell.phase, cell.misdeed, False)
    with pytest.raises(TrainingError) as told:
        run.result(SOON_S)  # TEST-6: later, it would be a TimeoutError
    error, blamed = told.value, cell.culprit if cell.blamed is None else cell.blamed
    assert (error.kind, error.rank) == (cell.kind, blamed), f"TEST-5: {error}"
    assert re.fullmatch(rf"rank {blamed} \(\S+\) {cell.says}", error.message), f"TEST-5: {error}"
    other = error.ranks[1 - blamed]
    assert re.fullmatch(cell.peers_state, other.state), f"TEST-5: {error}"
    assert str(error).startswith(error.message)
    assert psutil.Process().memory_info().rss - memory < 64 << 20
    also_told(cell, error)
    monkeypatch.undo()
    after(face, cell.phase)


def also_told(cell: Cell, error: TrainingError) -> None:
    """What the error has beside its first sentence."""
    if "raises" in cell.misdeed:
        assert "in raises" in error.traceback
    if cell.phase in (RETURN, EXIT):
        assert error.results[1 - cell.culprit] == misdeeds.WELL
    if cell.misdeed == "crashes":
        # Python shows the main thread last; with many others its first line, "Segmentation fault", is long gone.
        assert any("in crashes" in line for line in error.last_lines)
    if cell.misdeed == "exits_with_a_sentence":
        assert error.last_lines[-1] == "there is no data"
    if cell.misdeed.startswith("closes"):
        assert error.last_lines[0] == "last words"
    if cell.misdeed == "floods_and_raises":
        numbers = [int(line.split()[1]) for line in error.last_lines[:-1] if line.startswith("flood ")]
        assert len(error.last_lines) == 20
        assert all(b == a + 1 for a, b in itertools.pairwise(numbers)), error.last_lines


@pytest.mark.parametrize(("face", "cell"), by_face(HARMLESS))
def test_what_is_no_failure_hurts_nobody(
    face: str,
    cell: Cell,
    two_ranks: Callable[[str], Any],
    after: Callable[..., None],
    tmp_path: Path,
) -> None:
    run = two_ranks(face).start(misdeeds.train, str(tmp_path), 1, cell.phase, cell.misdeed, True)
    value = None if cell.misdeed == "exits_early" else misdeeds.WELL
    assert run.results(SOON_S) == [misdeeds.WELL, value]
    after(face, cell.phase)


@pytest.mark.parametrize("face", FACES)
def test_a_value_that_pickles_badly_fails_rank_0_and_is_left_out_of_another(
    face: str, two_ranks: Callable[[str], Any], after: Callable[..., None], tmp_path: Path
) -> None:
    run = two_ranks(face).start(misdeeds.train, str(tmp_path), 1, RETURN, "raises", True)
    well, missing = run.results(SOON_S, strict=False)
    assert well == misdeeds.WELL
    assert isinstance(missing, UnavailableResult)
    assert missing.reason.endswith("doesn't pickle: the labels are wrong")
    after(face, RETURN)


def test_a_value_that_cant_be_read_back_is_an_error_that_names_its_rank(
    two_ranks: Callable[[str], Any],
) -> None:
    run = two_ranks("local").start(misdeeds.Unreadable)
    with pytest.raises(
        TrainingError,
        match="rank 0 succeeded, but its result can't be read back here: ValueError: the labels",
    ) as told:
        run.result(SOON_S)
    assert (told.value.kind, told.value.rank) == ("exception", 0)


@pytest.mark.parametrize(
    "phase", [COMPUTES, *(pytest.param(phase, marks=whole(phase)) for phase in (GLOO, PHALANX))]
)
@pytest.mark.parametrize("face", FACES)
def test_a_stopped_rank_keeps_no_cancel_from_its_end(
    face: str, phase: str, two_ranks: Callable[[str], Any], after: Callable[..., None], tmp_path: Path
) -> None:
    run = two_ranks(face).start(misdeeds.train, str(tmp_path), 1, phase, "is_stopped", False)

    def stopped() -> bool:
        path = tmp_path / "1"
        return path.exists() and psutil.Process(json.loads(path.read_text())["pid"]).status() == "stopped"

    eventually("rank 1 is stopped", SOON_S, stopped)
    run.cancel()
    with pytest.raises(TrainingError, match="the job was cancelled: cancelled by the caller") as told:
        run.result(SOON_S)
    assert (told.value.kind, told.value.rank) == ("cancelled", None)
    assert [report.state for report in told.value.ranks] == ["stopped", "stopped"]
    after(face, phase)


@pytest.mark.parametrize("face", FACES)
def test_a_file_that_leaves_by_os_exit_ends_well(
    face: str, two_ranks: Callable[[str], Any], tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text("import os\nos._exit(0)\n")
    distributor = two_ranks(face)
    assert distributor.run(str(path)) is None
    path.write_text("import os, phalanx\nphalanx.set_result(7)\nos._exit(0)\n")
    with pytest.raises(TrainingError, match=NO_END) as told:
        distributor.run(str(path))
    assert told.value.kind == "exit_code"
