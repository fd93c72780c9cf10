"""The network between the driver's hub and its nodes fails for a second, or for good, over each stage.

What the core makes of it at each phase is in rust/job/tests/outages.rs; here it is seen through Spark.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from cluster import Host, Standalone
from hosts import TwoHosts, ip
from programs import APPS, Program, classic_conf, eventually, gone

pytestmark = pytest.mark.timeout(300)

STAGES = ["python", "jvm"]
LINES = 1000  # of gated.py


class Gated(Program):
    """A driver of `gated.py` whose ranks run."""

    def __init__(
        self,
        folder: Path,
        face: str,
        timeout: str,
        conf: Mapping[str, str] | None = None,
        host: Host | None = None,
    ) -> None:
        self.folder = folder / "gate"
        self.folder.mkdir()
        conf = dict(conf or classic_conf("local-cluster[2,1,1024]")) | {"spark.phalanx.nodeTimeout": timeout}
        host = host or Host()
        command = [*host.prefix, sys.executable, str(APPS / "gated.py"), str(self.folder), face]
        env = {"DRIVER_CONF": json.dumps(conf), "SPARK_LOCAL_IP": host.address}
        super().__init__(command, folder / "out", env=env)
        try:
            self.waits_for("two ranks", 120, lambda: len(self.ranks()) == 2)
        except BaseException:
            self.end()
            raise

    def ranks(self) -> list[int]:
        return [int(path.read_text()) for path in sorted(self.folder.glob("[01]"))]

    def go(self) -> None:
        (self.folder / "go").touch()

    def ends_well(self) -> None:
        """With every line of both ranks, once and in order, and both results."""
        self.waits_for("the run is over", 60, lambda: re.search("^(RETURNED|FAILED) ", self.text, re.M))
        assert "\nRETURNED [100000, 100000]\n" in self.text, self.text
        for rank in (0, 1):
            lines = re.findall(rf"^\[rank {rank}\] line (\d+)$", self.text, re.M)
            assert lines == [str(i) for i in range(LINES)], f"rank {rank}"
        self.ends(60)

    def fails_as_lost(self) -> None:
        told = self.waits_for("the run fails", 40, lambda: re.search("^FAILED (.*)$", self.text, re.M))
        assert re.match("lost_node .* is lost", told[1]), told[1]


@pytest.mark.parametrize("face", STAGES)
def test_an_outage_of_a_second_costs_nothing_and_one_for_good_is_a_lost_node(
    face: str, tmp_path: Path
) -> None:
    conf = classic_conf("local-cluster[2,1,1024]") | {"spark.phalanx.nodeTimeout": "6s"}
    command = [sys.executable, str(APPS / "outages.py"), str(tmp_path), face]
    with Program(command, tmp_path / "out", env={"DRIVER_CONF": json.dumps(conf)}) as driver:
        assert driver.ends(250) == 0, driver.text
        [line] = [line for line in driver.text.splitlines() if line.startswith("SEEN ")]
        for name, told in json.loads(line.removeprefix("SEEN ")).items():
            if name.endswith("1 s"):
                assert told.get("results") == [100_000, 100_000], f"{name}: {told}"
                assert told["lines of 0"], f"{name}: every line, once, in order"
                assert told["lines of 1"], f"{name}: every line, once, in order"
            else:
                assert told.get("kind") == "lost_node", f"{name}: {told}"
                assert " is lost" in told["message"], f"{name}: {told}"
                assert told["seconds"] < 40, name
                ranks = list(told["pids"])
                eventually(f"{name}: the ranks have ended", 30, lambda ranks=ranks: gone(ranks))


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


@pytest.mark.parametrize("face", STAGES)
def test_a_link_that_is_down_for_a_second_costs_nothing(
    face: str, hosts: TwoHosts, cluster: Standalone, tmp_path: Path
) -> None:
    with Gated(tmp_path, face, "6s", conf_of(hosts, cluster), hosts.host(0)) as driver:
        drop_all(hosts, whether=True)
        time.sleep(1)
        drop_all(hosts, whether=False)
        driver.go()
        driver.ends_well()


@pytest.mark.parametrize("face", STAGES)
def test_a_link_that_is_down_for_good_is_a_lost_node_and_leaves_no_rank_on_either_host(
    face: str, hosts: TwoHosts, cluster: Standalone, tmp_path: Path
) -> None:
    with Gated(tmp_path, face, "6s", conf_of(hosts, cluster), hosts.host(0)) as driver:
        ranks = driver.ranks()
        drop_all(hosts, whether=True)
        try:
            driver.fails_as_lost()
            eventually("the ranks of both hosts have ended", 30, lambda: gone(ranks))
        finally:
            drop_all(hosts, whether=False)


@pytest.mark.parametrize(("face", "node_timeout"), [("local", "2s"), ("python", "10s"), ("jvm", "10s")])
def test_a_driver_that_was_stopped_for_a_while_goes_on(face: str, node_timeout: str, tmp_path: Path) -> None:
    with Gated(tmp_path, face, node_timeout) as driver:
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
