"""A run that has no rank on one of two hosts, which are network namespaces: the blocks there reach it all the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.breathing import BREATHES
from support.cluster import Standalone
from support.hosts import TwoHosts
from support.places import APPS
from support.programs import WARM_IF_ASKED
from support.tiers import whole

pytestmark = [pytest.mark.timeout(400), whole("two hosts")]


@pytest.fixture(scope="module", params=["fixed", "breathing"])
def seen(
    request: pytest.FixtureRequest, hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What was seen where executors stay, and under dynamic allocation."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    cluster = Standalone(folder, [hosts.host_with_disk(at, folder / "disk") for at in range(2)])
    try:
        driver = hosts.addresses[0]
        # Executors are killed on one host more than once, which would then get no tasks for an hour.
        no_cooldown = {"spark.phalanx.host.cooldown": "0"}
        comes_and_goes = BREATHES | no_cooldown if request.param == "breathing" else {}
        conf = cluster.conf(executor_cores=2) | {
            **WARM_IF_ASKED,
            **comes_and_goes,
            "spark.executor.cores": "2",
            "spark.driver.host": driver,
            "spark.driver.bindAddress": driver,
            "spark.executor.memory": "600m",
            # A task that lasts while others of its job have ended is run a second time, and the first is killed.
            "spark.speculation": "true",
            "spark.speculation.minTaskRuntime": "100ms",
        }
        command = [sys.executable, APPS / "carried.py", "python", "jvm"]
        env = {"DRIVER_CONF": json.dumps(conf)}
        with hosts.host(0).start(command, folder / "out", env=env) as program:
            assert program.ends(330) == 0, program.text
        return program.printed("CARRIED") | {"output": program.text}
    finally:
        cluster.stop()


@pytest.fixture(params=["python", "jvm"])
def mine(request: pytest.FixtureRequest, seen: dict[str, Any]) -> dict[str, Any]:
    """What was seen over one stage."""
    assert "error" not in seen[request.param], seen[request.param]["error"] + seen["output"]
    return dict(seen[request.param])


def test_the_blocks_of_a_host_without_ranks_reach_the_rank_of_another(
    mine: dict[str, Any], hosts: TwoHosts
) -> None:
    assert mine["fed"]["blocks"] == sorted(hosts.names), "both hosts have blocks, and one has the rank"
    assert mine["fed"]["whole"], "FEED-37"


def test_a_carrier_that_is_lost_is_a_lost_node_and_names_its_host(
    mine: dict[str, Any], hosts: TwoHosts
) -> None:
    kind, rank, text = mine["lost"]
    assert (kind, rank) == ("lost_node", None)
    assert sum(name in text.splitlines()[0] for name in hosts.names) == 1, text


def test_the_attempt_after_a_lost_carrier_has_all_rows(mine: dict[str, Any]) -> None:
    assert mine["again"] is True


def test_no_spark_job_outlives_the_run(mine: dict[str, Any]) -> None:
    assert mine["left"] == [], "FEED-9"
