"""The network between the driver's hub and its nodes fails for a second, or for good, over each stage.

What the core makes of it at each phase is in rust/job/tests/outages.rs; here it is seen through Spark.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.cluster import Host, Standalone
from support.hosts import TwoHosts, ip
from support.places import APPS
from support.programs import TWO_EXECUTORS, WARM_IF_ASKED, classic_conf, eventually, gone, seen_by
from support.tiers import faces_wanted, whole
from support.trainer import Drivers, Trainer

pytestmark = pytest.mark.timeout(300)

STAGES = ["python", "jvm"]
TIMEOUT_S = 6
GRACE_S = 1.0  # of `classic_conf`
# What a machine with two processors takes beside what docs/failures.md promises.
LITTLE_S = 1.0
TOLD_S = TIMEOUT_S + GRACE_S + LITTLE_S
# A node gives up a driver that is silent 2 s after the driver has given up the node.
RANKS_END_S = TOLD_S + 2
LINES = 1000  # of gated.py


class Gated(Trainer):
    """A driver of `gated.py`."""

    def go(self) -> None:
        (self.folder / "go").touch()

    def ends_well(self) -> None:
        """With every line of both ranks, once and in order, and both results."""
        assert self.is_over(60) == "RETURNED [100000, 100000]", self.text
        mine = re.split("^(?:RETURNED|FAILED) .*$", self.text, flags=re.M)[self.number]
        for rank in (0, 1):
            lines = re.findall(rf"^\[rank {rank}\] line (\d+)$", mine, re.M)
            assert lines == [str(i) for i in range(LINES)], f"rank {rank}"

    def fails_as_lost(self, since: float) -> None:
        told = self.is_over(60)
        assert re.match(r"FAILED \S+ lost_node .* is lost", told), told
        assert float(told.split()[1]) - since <= TOLD_S, told


@pytest.fixture
def gated(tmp_path: Path, drivers: Drivers[Gated]) -> Iterator[Callable[..., Gated]]:
    """A driver whose ranks run over a stage: an earlier test's, or a new one."""
    with contextlib.ExitStack() as running:

        def make(
            face: str, timeout: str, conf: Mapping[str, str] | None = None, host: Host | None = None
        ) -> Gated:
            conf = dict(conf or classic_conf(TWO_EXECUTORS)) | WARM_IF_ASKED
            conf |= {"spark.phalanx.nodeTimeout": timeout}
            name = f"{'local' if face == 'local' else 'cluster'} {conf}"
            host = host or Host()
            env = {"DRIVER_CONF": json.dumps(conf), "SPARK_LOCAL_IP": host.address}
            command = [*host.prefix, sys.executable]
            start = partial(Gated, APPS / "gated.py", tmp_path, face, env=env, command=command)
            return running.enter_context(drivers.training(name, face, start))

        yield make


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By stage: what `outages.py` saw."""
    folder = tmp_path_factory.mktemp("outages")
    # Eight runs at a time.
    conf = classic_conf("local-cluster[2,8,1024]") | WARM_IF_ASKED
    conf |= {"spark.phalanx.nodeTimeout": f"{TIMEOUT_S}s"}
    command = [sys.executable, str(APPS / "outages.py"), str(folder), *faces_wanted(request, STAGES)]
    return seen_by(command, folder, env={"DRIVER_CONF": json.dumps(conf)}, within=280)


@pytest.mark.alone
@pytest.mark.parametrize("over", STAGES)
def test_an_outage_of_a_second_costs_nothing_and_one_for_good_is_a_lost_node(
    over: str, seen: dict[str, Any]
) -> None:
    for name, told in seen[over].items():
        if name.endswith("1 s"):
            assert told.get("results") == [100_000, 100_000], f"{name}: {told}"
            assert told["lines of 0"], f"{name}: every line, once, in order"
            assert told["lines of 1"], f"{name}: every line, once, in order"
        else:
            assert told.get("kind") == "lost_node", f"{name}: {told}"
            assert " is lost" in told["message"], f"{name}: {told}"
            assert told["seconds"] <= TOLD_S, f"{name}: {told}"
            assert told["seconds to the ranks' end"] <= RANKS_END_S, f"{name}: {told}"


@pytest.fixture(scope="module")
def cluster(hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A worker on each host, the master and the driver on the first."""
    if shutil.which("iptables") is None:
        pytest.skip("a link can't be cut here: there is no `iptables` command")
    made = Standalone(tmp_path_factory.mktemp("cluster"), [hosts.host(0), hosts.host(1)])
    yield made
    made.stop()


def conf_of(hosts: TwoHosts, cluster: Standalone) -> dict[str, str]:
    driver = hosts.addresses[0]
    address = {"spark.driver.host": driver, "spark.driver.bindAddress": driver}
    return cluster.conf() | address | {"spark.executor.memory": "600m"}


def drop_all(hosts: TwoHosts, *, whether: bool) -> None:
    """What either host sends to the other one is lost, without a word, or isn't any more."""
    for name, interface in zip(hosts.names, hosts.interfaces, strict=True):
        rule = ["INPUT", "-i", interface, "-j", "DROP"]
        ip("netns", "exec", name, "iptables", "-A" if whether else "-D", *rule)


@whole("two hosts")
@pytest.mark.parametrize("over", STAGES)
def test_a_link_that_is_down_for_a_second_costs_nothing(
    over: str, hosts: TwoHosts, cluster: Standalone, gated: Callable[..., Gated]
) -> None:
    driver = gated(over, f"{TIMEOUT_S}s", conf_of(hosts, cluster), hosts.host(0))
    drop_all(hosts, whether=True)
    time.sleep(1)
    drop_all(hosts, whether=False)
    driver.go()
    driver.ends_well()


@whole("two hosts")
@pytest.mark.alone
@pytest.mark.parametrize("over", STAGES)
def test_a_link_that_is_down_for_good_is_a_lost_node_and_leaves_no_rank_on_either_host(
    over: str, hosts: TwoHosts, cluster: Standalone, gated: Callable[..., Gated]
) -> None:
    driver = gated(over, f"{TIMEOUT_S}s", conf_of(hosts, cluster), hosts.host(0))
    ranks = driver.ranks
    began = time.time()
    drop_all(hosts, whether=True)
    try:
        driver.fails_as_lost(began)
        left = began + RANKS_END_S - time.time()
        eventually("the ranks of both hosts have ended", left, lambda: gone(ranks))
    finally:
        drop_all(hosts, whether=False)


@whole("another process that stands still")
@pytest.mark.parametrize(("over", "node_timeout"), [("local", "2s"), ("python", "10s"), ("jvm", "10s")])
def test_a_driver_that_was_stopped_for_a_while_goes_on(
    over: str, node_timeout: str, gated: Callable[..., Gated]
) -> None:
    driver = gated(over, node_timeout)
    processes = [psutil.Process(driver.pid)]
    processes += [p for p in processes[0].children() if p.name() == "java"]
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(6)
    for process in reversed(processes):
        os.kill(process.pid, signal.SIGCONT)
    # Until well after whatever was due would have ended the run.
    time.sleep(3)
    driver.go()
    driver.ends_well()
