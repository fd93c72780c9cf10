"""Ranks on two hosts, which are network namespaces: where each is, what it is told, that they reach each other, and
that the rows of a DataFrame do, too.

Each host has an interface that leads nowhere, though it is up, comes first by name and has the default route.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Standalone
from support.hosts import TwoHosts
from support.places import APPS
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), whole("two hosts")]

ROWS_FED = 4000


@pytest.fixture(scope="module")
def cluster(hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A worker of two cores on each host, which has a disk of its own; the master and the driver on the first."""
    folder = tmp_path_factory.mktemp("cluster")
    made = Standalone(folder, [hosts.host_with_disk(at, folder / "disk") for at in range(2)])
    yield made
    made.stop()


def smoke(hosts: TwoHosts, cluster: Standalone, hub: str, out: Path) -> dict[str, Any]:
    driver = hosts.addresses[0]
    conf = cluster.conf(executor_cores=2) | {
        "spark.driver.host": driver,
        "spark.driver.bindAddress": driver,
        "spark.executor.memory": "600m",
    }
    env = {"DRIVER_CONF": json.dumps(conf), "SMOKE_HUB": hub}
    if hub == driver:
        env["LAST_HOST"] = hosts.names[1]
    command = [sys.executable, APPS / "smoke.py", "4", "python", "jvm"]
    with hosts.host(0).start(command, out, env=env) as program:
        assert program.ends(240) == 0, program.text
    return program.printed("SMOKE") | {"output": program.text}


@pytest.fixture(scope="module")
def seen(hosts: TwoHosts, cluster: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return smoke(hosts, cluster, hosts.addresses[0], tmp_path_factory.mktemp("reached") / "out")


@pytest.fixture(scope="module")
def seen_without_hub(
    hosts: TwoHosts, cluster: Standalone, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The hub listens where the second host can't reach it."""
    return smoke(hosts, cluster, hosts.hidden, tmp_path_factory.mktemp("hidden") / "out")


def ranks_are_right(seen: dict[str, Any], hosts: TwoHosts) -> None:
    results = seen["results"]
    assert [rank["sum"] for rank in results] == [5.0] * 4
    networks = [rank["network"] for rank in results]
    assert networks[0] == networks[1] != networks[2] == networks[3], "two ranks on each host, in order"
    # Which host has partition 0, and with it the store, is Spark's choice.
    master = results[0]["env"]["MASTER_ADDR"]
    assert master in hosts.addresses
    first = hosts.addresses.index(master)
    for rank, result in enumerate(results):
        interface = hosts.interfaces[first if rank < 2 else 1 - first]
        assert result["env"] == {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank),
            "GROUP_WORLD_SIZE": "4",
            "MASTER_ADDR": master,
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
        }


@pytest.fixture(params=["python", "jvm"])
def mine(request: pytest.FixtureRequest, seen: dict[str, Any]) -> dict[str, Any]:
    """What one stage did."""
    assert "error" not in seen[request.param], seen[request.param]["error"] + seen["output"]
    return dict(seen[request.param])


@pytest.fixture(params=["python", "jvm"])
def mine_without_hub(request: pytest.FixtureRequest, seen_without_hub: dict[str, Any]) -> dict[str, Any]:
    """What one stage did when the second host could not reach the hub."""
    found = seen_without_hub[request.param]
    assert "error" not in found, found["error"] + seen_without_hub["output"]
    return dict(found) | {"output": seen_without_hub["output"]}


def test_ranks_of_two_hosts_know_their_places_and_reach_each_other_by_the_right_interface(
    mine: dict[str, Any], hosts: TwoHosts
) -> None:
    ranks_are_right(mine, hosts)


def test_the_output_of_both_hosts_is_shown(seen: dict[str, Any]) -> None:
    for rank in range(4):
        assert seen["output"].count(f"[rank {rank}] the sum is 5.0\n") == 2, "once for each stage"


def test_a_rank_that_fails_ends_those_of_the_other_host_and_is_named(mine: dict[str, Any]) -> None:
    assert mine["failure"] == ["exception", 1, "KeyError('no such column')", True]


def test_when_one_host_cant_reach_the_hub_all_meet_through_spark_and_find_each_other(
    mine_without_hub: dict[str, Any], hosts: TwoHosts
) -> None:
    ranks_are_right(mine_without_hub, hosts)
    assert mine_without_hub["file"] == ["--lr", "0.1"]
    assert mine_without_hub["failure"] == ["exception", 1, "KeyError('no such column')", True], (
        mine_without_hub["output"]
    )


def test_where_the_plugin_is_on_output_is_shown_also_of_a_host_that_cant_reach_the_hub(
    seen_without_hub: dict[str, Any],
) -> None:
    shown = [seen_without_hub["output"].count(f"[rank {rank}] the sum is 5.0\n") for rank in range(4)]
    assert shown == [2] * 4, "WAY-6: by either stage, of all ranks"


def test_every_row_comes_once_an_epoch_and_blocks_of_both_hosts_reach_all_ranks(
    mine: dict[str, Any], hosts: TwoHosts
) -> None:
    fed = mine["fed"]
    assert {rank["host"] for rank in fed} == set(hosts.names)
    for epoch in range(2):
        rows = sorted(row for rank in fed for row in rank["epochs"][epoch])
        assert rows == list(range(ROWS_FED))
    assert fed[0]["epochs"][0] != fed[0]["epochs"][1], "shuffled"
    for rank in fed:
        assert set(rank["blocks"]) == set(hosts.names), "both hosts have blocks"
        assert rank["near"] > 0, "some are read here"
        assert rank["far"] > 0, "and some fetched"
        assert rank["shared"] == rank["far"], "each is there once, for both ranks of the host"
        assert rank["left"] == [], "FEED-17"


@pytest.mark.parametrize("loss", ["rank", "executor"])
def test_ranks_that_start_again_take_each_row_once_from_blocks_of_both_hosts(
    loss: str, seen: dict[str, Any], mine: dict[str, Any]
) -> None:
    """In place, and in another stage, for which the blocks are made again; from what `phalanx.checkpoint` has."""
    parts = mine["resumed"][loss]
    assert sorted(row for part in parts for row in part) == list(range(ROWS_FED)), "FEED-23"
    restarts = re.findall(r"\[phalanx\] restart 1 of 1: .*", seen["output"])
    again = [line for line in restarts if line.endswith("; the Spark stage is submitted again")]
    assert [len(restarts), len(again)] == [4, 2], restarts


def test_a_host_that_is_lost_while_it_serves_blocks_is_the_cause(seen: dict[str, Any]) -> None:
    kind, _, said = seen["jvm"]["lost"]
    assert kind == "lost_node", said
    # The driver's hub or Spark, whoever is the first to know it.
    assert "is lost with its task" in said or "ExecutorLostFailure" in said


def test_a_node_whose_ranks_have_ended_serves_on_to_those_of_the_other_host(mine: dict[str, Any]) -> None:
    assert sorted(mine["late"]) == [0, 0, ROWS_FED // 4, ROWS_FED // 4], "DRIVER-19"
