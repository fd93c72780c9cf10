"""A real standalone cluster: daemons of their own, and a driver that is just a Python program."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from support.cluster import Standalone
from support.places import APPS
from support.programs import alive, below, eventually
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), whole("a standalone cluster")]


@pytest.fixture(scope="module")
def seen(standalone: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("smoke")
    out, logs = folder / "out", folder / "logs"
    logs.mkdir()
    conf = standalone.conf() | {"spark.phalanx.logs.directory": str(logs)}
    env = {"DRIVER_CONF": json.dumps(conf)}
    host = standalone.hosts[0]
    with host.start([sys.executable, APPS / "smoke.py", "2", "python", "jvm"], out, env=env) as driver:
        assert driver.ends(240) == 0, driver.text
    return driver.printed("SMOKE") | {"output": driver.text, "logs": logs}


@pytest.fixture(params=["python", "jvm"])
def mine(request: pytest.FixtureRequest, seen: dict[str, Any]) -> dict[str, Any]:
    """What one stage did."""
    stage: dict[str, Any] = seen[request.param]
    assert "error" not in stage, stage["error"]
    return stage


def test_ranks_of_two_workers_form_a_group(mine: dict[str, Any]) -> None:
    assert [rank["sum"] for rank in mine["results"]] == [1.5, 1.5]
    for rank, result in enumerate(mine["results"]):
        assert result["env"]["RANK"] == result["env"]["GROUP_RANK"] == str(rank)
        assert (result["env"]["LOCAL_RANK"], result["env"]["GROUP_WORLD_SIZE"]) == ("0", "2")


def test_their_output_is_shown(seen: dict[str, Any]) -> None:
    for rank in range(2):
        assert seen["output"].count(f"[rank {rank}] the sum is 1.5\n") == 2, "once for each stage"


def test_a_file_gets_its_arguments_and_leaves_its_result(mine: dict[str, Any]) -> None:
    assert mine["file"] == ["--lr", "0.1"]


def test_a_failing_rank_is_named_with_its_exception(mine: dict[str, Any]) -> None:
    assert mine["failure"] == ["exception", 1, "KeyError('no such column')", True]


def test_the_executors_own_logs_have_the_end_of_a_failing_rank(
    seen: dict[str, Any], standalone: Standalone
) -> None:
    for stage, file in ("jvm", "stdout"), ("python", "stderr"):
        logs = "".join(log.read_text() for log in standalone.folder.glob(f"work-*/app-*/*/{file}"))
        assert len(re.findall(r"^\[rank 1\] \[phalanx\] of job \w+: raised KeyError", logs, re.M)) == 1, stage
        assert "the sum is" not in logs, "ranks that ended well left nothing there"


def test_the_logs_of_every_run_outlive_the_application(seen: dict[str, Any]) -> None:
    both = [{log.name for log in run.iterdir()} for run in seen["logs"].iterdir()]
    assert len(both) >= 4, "two stages, each with a run that ended well and one that failed"
    # A rank that waited for one that failed may have left its flight recorder's dump, if it was quick enough.
    others = {f"flight-recorder-{rank}" for rank in (0, 1)}
    assert all(names - others == {"rank-0.log", "rank-1.log"} for names in both), both
    texts = [log.read_text() for log in seen["logs"].glob("*/rank-1.log")]
    assert sum("the sum is 1.5" in text for text in texts) == 2


def test_the_workers_keep_no_process_of_a_driver_that_ended_well(
    mine: dict[str, Any], standalone: Standalone
) -> None:
    def executors() -> list[int]:
        return alive([process.pid for worker in standalone.workers for process in below(worker.pid)])

    eventually("no executor is left", 30, lambda: not executors())
