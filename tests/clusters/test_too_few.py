"""An elastic run that has lost so many hosts that too few tasks are left."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import chaos
from support.cluster import Host, Standalone
from support.programs import Program
from support.tiers import whole

pytestmark = [pytest.mark.timeout(240), whole("a standalone cluster")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    started = Standalone(tmp_path / "cluster", [Host("127.0.0.1"), Host("127.0.0.2")], cores=1)
    yield started
    started.stop()


@contextlib.contextmanager
def without_a_host(cluster: Standalone, folder: Path, wait: str) -> Iterator[Program]:
    """The driver of a run of two or three ranks, of which a host has one; it waits for so long. One of two hosts is
    lost once it trains."""
    folder.mkdir()
    conf = cluster.conf() | chaos.CONF | {"spark.phalanx.gang.wait": wait}
    env = {"DRIVER_CONF": json.dumps(conf)}
    with Program(chaos.command(folder, 2, 3, 1), folder.parent / "out", env=env) as program:
        program.waits_for("the run trains", 120, lambda: chaos.reached(folder, 20))
        cluster.workers[1].end()
        yield program


def test_ranks_that_are_too_few_go_on_with_a_host_that_comes_in_time(
    cluster: Standalone, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with without_a_host(cluster, folder, "100s") as program:
        program.waits_for("the others are ended", 30, lambda: "[phalanx] restart 1 of" in program.text)
        before = int((folder / "at").read_text())
        cluster.restart_worker(1)
        program.waits_for("the run goes on", 60, lambda: chaos.reached(folder, before + 10))
        (folder / "enough").touch()
        assert program.ends(60) == 0, program.text
    answer = program.printed("ENDURED")
    assert (answer["sizes"], len(answer["restarts"])) == ([2, 2], 1), answer
    assert answer["off"] < 1e-9, answer


def test_ranks_that_stay_too_few_fail_and_say_how_long_they_have_waited_for_how_many(
    cluster: Standalone, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with without_a_host(cluster, folder, "12s") as program:
        assert program.ends(60) != 0, program.text
    [said] = [
        line for line in program.text.splitlines() if line.startswith("phalanx.") and "TrainingError" in line
    ]
    waited = "Spark did not bring the executors for 2 tasks within 12s (spark.phalanx.gang.wait)"
    assert f"{waited}: it has 1 of 2 task slots" in said, program.text
    assert not chaos.ranks_of(folder)
