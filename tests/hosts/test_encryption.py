"""A cluster of two hosts, which are network namespaces, whose RPC Spark encrypts: what leaves a host, and what may."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster import Standalone
from support.hosts import TwoHosts
from support.places import APPS
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), whole("two hosts")]

RANKS = 4
CRYPTO = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "a-secret-of-the-tests",
    "spark.network.crypto.enabled": "true",
}
KEY, VALUE, END = "a-key-of-the-store", "a-value-of-the-store", "the-sniffer-may-end"


@pytest.fixture(scope="module")
def cluster(hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    both = [hosts.host(0), hosts.host(1)]
    made = Standalone(tmp_path_factory.mktemp("cluster"), both, daemon_conf=CRYPTO)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def seen(hosts: TwoHosts, cluster: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the ranks saw, and what somebody between the hosts did."""
    folder = tmp_path_factory.mktemp("encrypted")
    driver, other = hosts.addresses
    conf = cluster.conf(executor_cores=2) | {
        "spark.driver.host": driver,
        "spark.driver.bindAddress": driver,
        "spark.executor.memory": "600m",
    }
    sniffer = [sys.executable, APPS / "sniffer.py", hosts.interfaces[0], END, KEY, VALUE]
    command = [sys.executable, APPS / "encrypted.py", str(RANKS), other]
    with hosts.host(0).start(sniffer, folder / "sniffer") as sniffs:
        sniffs.waits_for("it listens", 30, lambda: "LISTENS" in sniffs.text)
        env = {"DRIVER_CONF": json.dumps(conf | CRYPTO)}
        with hosts.host(0).start(command, folder / "driver", env=env) as program:
            assert program.ends(240) == 0, program.text
        assert sniffs.ends(60) == 0, sniffs.text
        return program.printed("SEEN") | {"sniffed": sniffs.printed("SNIFFED"), "output": program.text}


@pytest.mark.parametrize("face", ["python", "jvm"])
def test_ranks_of_two_hosts_train_and_find_the_store_inside_their_own_host(
    seen: dict[str, Any], face: str
) -> None:
    # NODE-49
    results = seen[face]
    assert [rank["sum"] for rank in results] == [10.0] * RANKS
    assert [rank["master"] for rank in results] == ["127.0.0.1"] * RANKS
    assert len({rank["network"] for rank in results}) == 2
    assert [rank["others"] for rank in results] == [[VALUE] * RANKS] * RANKS


def test_who_is_between_the_hosts_sees_nothing_of_the_store(seen: dict[str, Any]) -> None:
    # NODE-49
    assert seen["sniffed"]["seen"] == []
    assert seen["sniffed"]["packets"] > 1000


def test_gloo_between_hosts_is_refused_in_one_sentence(seen: dict[str, Any]) -> None:
    # BACKEND-6
    kind, said = seen["gloo"]
    assert kind == "exception"
    assert said.startswith("a group of gloo would send gradients unencrypted to other hosts")


def test_no_warning_says_that_the_token_is_plain(seen: dict[str, Any]) -> None:
    assert "Spark's RPC" not in seen["output"]
