"""A real standalone cluster: daemons of their own, and a driver that is just a Python program."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from cluster import Standalone
from programs import APPS, alive, below, eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def seen(standalone: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("smoke") / "out"
    env = {"DRIVER_CONF": json.dumps(standalone.conf())}
    host = standalone.hosts[0]
    with host.start([sys.executable, APPS / "smoke.py", "2", "python", "jvm"], out, env=env) as driver:
        assert driver.ends(240) == 0, driver.text
        [line] = [line for line in driver.text.splitlines() if line.startswith("SMOKE ")]
    return json.loads(line.removeprefix("SMOKE ")) | {"output": driver.text}


@pytest.fixture(params=["python", "jvm"])
def mine(request: pytest.FixtureRequest, seen: dict[str, Any]) -> dict[str, Any]:
    """What one stage did."""
    stage: dict[str, Any] = seen[request.param]
    assert "error" not in stage, stage["error"]
    return stage


def test_ranks_of_two_workers_form_a_group(mine: dict[str, Any]) -> None:
    assert [rank["sum"] for rank in mine["results"]] == [1.5, 1.5]
    for rank, result in enumerate(mine["results"]):
        assert result["env"]["RANK"] == result["env"]["LOCAL_RANK"] == str(rank)
        assert result["env"]["GROUP_WORLD_SIZE"] == "1", "both workers are on one host"


def test_their_output_is_shown(seen: dict[str, Any]) -> None:
    for rank in range(2):
        assert seen["output"].count(f"[rank {rank}] the sum is 1.5\n") == 2, "once for each stage"


def test_a_file_gets_its_arguments_and_leaves_its_result(mine: dict[str, Any]) -> None:
    assert mine["file"] == ["--lr", "0.1"]


def test_a_failing_rank_is_named_with_its_exception(mine: dict[str, Any]) -> None:
    assert mine["failure"] == ["exception", 1, "KeyError('no such column')", True]


def test_the_workers_keep_no_process_of_a_driver_that_ended_well(
    mine: dict[str, Any], standalone: Standalone
) -> None:
    def executors() -> list[int]:
        return alive([process.pid for worker in standalone.workers for process in below(worker.pid)])

    eventually("no executor is left", 30, lambda: not executors())
