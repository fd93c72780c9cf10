"""An elastic run on hosts that die and come back, stand still, are decommissioned, and lose packets."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import chaos
from support.cluster import Standalone
from support.hosts import SwitchedHosts, made_or_skipped
from support.programs import eventually
from support.tiers import whole

TWO_MINUTES = pytest.param(120, 10.0, marks=pytest.mark.timeout(chaos.TIMEOUT_S))


@pytest.fixture
def hosts() -> Iterator[SwitchedHosts]:
    """The first has the driver and a worker, and stays."""
    yield from made_or_skipped(lambda: SwitchedHosts(3))


class Faults:
    """What happens to the hosts but the first."""

    def __init__(self, hosts: SwitchedHosts, cluster: Standalone) -> None:
        self._hosts = hosts
        self._cluster = cluster

    def dies(self, chance: random.Random) -> None:
        """All of a host is killed; it comes back a little later."""
        at = self._one(chance)
        for process in self._hosts.processes(at):
            process.kill()
        time.sleep(chance.uniform(0, 4))
        self._cluster.restart_worker(at)

    def stands_still(self, chance: random.Random) -> None:
        """So long that it counts as lost, or not."""
        chaos.frozen(self._hosts.processes(self._one(chance)), chance.uniform(0.5, 6))

    def is_decommissioned(self, chance: random.Random) -> None:
        """A worker, which then ends, and comes back."""
        at = self._one(chance)
        worker = self._cluster.workers[at]
        os.kill(worker.pid, signal.SIGPWR)
        eventually("the worker has heard of it", 10, lambda: "ecommission" in worker.text)
        time.sleep(4)
        self._cluster.restart_worker(at)

    def loses_packets(self, chance: random.Random) -> None:
        """Whatever is sent faster than this is lost, for some seconds."""
        at = self._one(chance)
        self._hosts.slow_down(at, "1mbit", burst="4k", latency="2ms")
        time.sleep(chance.uniform(1, 4))
        self._hosts.slow_down(at, "400mbit")

    def is_cut_off(self, chance: random.Random) -> None:
        """All packets are lost: for so long that the host counts as lost, or not."""
        at = self._one(chance)
        self._hosts.plug(at, "down")
        time.sleep(chance.uniform(0.5, 5))
        self._hosts.plug(at, "up")

    def _one(self, chance: random.Random) -> int:
        return chance.choice(range(1, len(self._hosts.addresses)))


@pytest.mark.alone
@whole("several hosts")
@pytest.mark.parametrize(("seconds", "every"), [TWO_MINUTES, *chaos.by_hand()])
def test_a_run_whose_hosts_go_and_come_has_the_losses_of_an_undisturbed_one(
    hosts: SwitchedHosts, seconds: int, every: float, tmp_path: Path
) -> None:
    everywhere = [hosts.host(at) for at in range(3)]
    cluster = Standalone(
        tmp_path / "cluster", everywhere, cores=1, daemon_conf={"spark.decommission.enabled": "true"}
    )
    try:
        driver = hosts.addresses[0]
        conf = cluster.conf() | chaos.CONF | {"spark.driver.host": driver, "spark.driver.bindAddress": driver}
        folder = tmp_path / "run"
        folder.mkdir()
        env = {"DRIVER_CONF": json.dumps(conf)}
        with hosts.host(0).start(chaos.command(folder, 1, 3), tmp_path / "out", env=env) as program:
            of_hosts = Faults(hosts, cluster)
            faults: dict[str, chaos.Fault] = {
                "a rank is killed": chaos.kills_a_rank(folder),
                "a rank stands still": chaos.freezes_a_rank(folder),
                "a host dies": of_hosts.dies,
                "a host stands still": of_hosts.stands_still,
                "a host is decommissioned": of_hosts.is_decommissioned,
                "a host loses packets": of_hosts.loses_packets,
                "a host is cut off": of_hosts.is_cut_off,
            }
            answer = chaos.endures(program, folder, faults, seconds=seconds, every=every)
        assert len(set(answer["sizes"])) > 1, answer
    finally:
        cluster.stop()
    left = [process for at in range(3) for process in hosts.processes(at)]
    eventually("no process is left on any host", 30, lambda: not any(map(psutil.Process.is_running, left)))
