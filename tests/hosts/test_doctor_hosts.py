"""`phalanx.doctor` on a cluster of several hosts that are broken in many ways: each way is named with its host."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Standalone
from support.hosts import SwitchedHosts, made_or_skipped
from support.places import APPS, PYTHON
from support.programs import classic_conf
from support.tiers import whole

pytestmark = [pytest.mark.timeout(400), whole("several hosts")]

# Ports of Spark's own, which a firewall lets through, and those of the job's hub.
SPARKS_PORTS = 7500
HUB_PORT = 29600
OTHER_TORCH = "2.0.1"
# The hosts: the driver's, with a worker that is in order, and three that are not.
DRIVER, SLOW, TORCHLESS, CUT = range(4)
ELSEWHERE = "10.214.9.77"


def pythons(folder: Path) -> dict[int, Path]:
    """A Python for each host that can't take that of the tests, which is `folder`/python."""
    packages = Path(sysconfig.get_path("purelib"))
    bare = folder / "without-torch"
    bare.mkdir()
    for entry in packages.iterdir():
        if not entry.name.startswith("torch"):
            (bare / entry.name).symlink_to(entry)
    other = folder / "other-torch"
    (other / "torch").mkdir(parents=True)
    (other / "torch" / "__init__.py").write_text(
        f"__version__ = {OTHER_TORCH!r}\n"
        "class version:\n    cuda = None\n"
        "class distributed:\n    is_available = staticmethod(lambda: True)\n"
    )
    (other / f"torch-{OTHER_TORCH}.dist-info").mkdir()
    (other / f"torch-{OTHER_TORCH}.dist-info" / "METADATA").write_text(
        f"Name: torch\nVersion: {OTHER_TORCH}\n"
    )
    base: str = sys._base_executable  # type: ignore[attr-defined]
    made = {}
    for name, path, program in (
        ("python", PYTHON, sys.executable),
        ("python-without-torch", bare, base),
        ("python-other-torch", f"{other}:{PYTHON}", sys.executable),
    ):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexport PYTHONPATH="{path}:$PYTHONPATH"\nexec {program} "$@"\n')
        script.chmod(0o755)
        made[name] = script
    return {TORCHLESS: made["python-without-torch"], SLOW: made["python-other-torch"]}


@pytest.fixture(scope="module")
def hosts() -> Iterator[SwitchedHosts]:
    yield from made_or_skipped(lambda: SwitchedHosts(4))


@pytest.fixture(scope="module")
def examined(hosts: SwitchedHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the doctor says of all that is broken at once."""
    folder = tmp_path_factory.mktemp("broken")
    others = pythons(folder)
    python = str(folder / "python")
    disk = folder / "disk"
    disk.mkdir()
    first = {
        SLOW: [
            ["mount", "--bind", str(others[SLOW]), python],
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"],
        ],
        TORCHLESS: [["mount", "--bind", str(others[TORCHLESS]), python]],
        CUT: [
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)],
            ["sh", "-c", f"! head -c 5m /dev/zero > {disk}/filler 2>/dev/null"],
            ["export", f"SPARK_LOCAL_DIRS={disk}"],
        ],
    }
    hosts.slow_down(SLOW, "40mbit")
    hosts.leads_to(TORCHLESS, ELSEWHERE)
    hosts.let_through(CUT, f"{SPARKS_PORTS}-{SPARKS_PORTS + 50}")
    for peer in (SLOW, TORCHLESS):
        hosts.drop(CUT, peer)
    hosts.drop(DRIVER, CUT, "sport", f"{HUB_PORT}-{HUB_PORT + 15}")
    cluster = Standalone(
        folder / "cluster", [hosts.with_mounts(at, first.get(at, ())) for at in range(4)], cores=1
    )
    try:
        driver = hosts.addresses[DRIVER]
        conf = {
            **classic_conf(cluster.url),
            "spark.cores.max": "4",
            "spark.executor.memory": "512m",
            "spark.driver.host": driver,
            "spark.driver.bindAddress": driver,
            "spark.blockManager.port": str(SPARKS_PORTS),
            "spark.phalanx.hub.port": str(HUB_PORT),
        }
        # An executor with a full disk couldn't even take the jar.
        del conf["spark.jars"], conf["spark.plugins"]
        env = {"DRIVER_CONF": json.dumps(conf), "PYSPARK_PYTHON": python, "PYTHONPATH": str(PYTHON)}
        command = [sys.executable, APPS / "examined.py", "4", "240"]
        with hosts.host(DRIVER).start(command, folder / "out", env=env) as program:
            assert program.ends(300) == 0, program.text
            found: dict[str, Any] = program.printed("EXAMINED")
        yield found
    finally:
        cluster.stop()


def findings(examined: dict[str, Any], check: str) -> dict[str, dict[str, str]]:
    """What there is of a check that isn't in order, by host."""
    found = examined["report"]["findings"]
    return {one["host"]: one for one in found if one["check"] == check and one["level"] != "ok"}


def test_a_host_whose_ports_are_dropped_is_named(examined: dict[str, Any], hosts: SwitchedHosts) -> None:
    found = findings(examined, "ports")
    assert list(found) == [hosts.addresses[CUT]], examined["text"]
    for peer in (SLOW, TORCHLESS):
        assert hosts.addresses[peer] in found[hosts.addresses[CUT]]["means"]
    assert found[hosts.addresses[CUT]]["level"] == "error"


def test_a_host_that_the_drivers_port_is_dropped_for_is_named(
    examined: dict[str, Any], hosts: SwitchedHosts
) -> None:
    found = findings(examined, "driver")
    assert list(found) == [hosts.addresses[CUT]], examined["text"]
    assert "dropped on the way" in found[hosts.addresses[CUT]]["means"]


def test_a_host_whose_name_leads_elsewhere_is_named(examined: dict[str, Any], hosts: SwitchedHosts) -> None:
    found = findings(examined, "names")
    assert list(found) == [hosts.addresses[TORCHLESS]], examined["text"]
    assert ELSEWHERE in found[hosts.addresses[TORCHLESS]]["means"]


def test_a_host_without_torch_is_named(examined: dict[str, Any], hosts: SwitchedHosts) -> None:
    found = findings(examined, "torch")
    assert list(found) == [hosts.addresses[TORCHLESS]], examined["text"]
    assert "No module named 'torch'" in found[hosts.addresses[TORCHLESS]]["means"]


def test_a_host_without_phalanx_is_looked_at_and_named(
    examined: dict[str, Any], hosts: SwitchedHosts
) -> None:
    # DOCTOR-9
    found = findings(examined, "Phalanx")
    assert list(found) == [hosts.addresses[TORCHLESS]], examined["text"]
    assert "can't be imported" in found[hosts.addresses[TORCHLESS]]["means"]


def test_a_host_with_another_torch_is_named(examined: dict[str, Any], hosts: SwitchedHosts) -> None:
    found = findings(examined, "torch version")
    assert list(found) == [hosts.addresses[SLOW]], examined["text"]
    assert OTHER_TORCH in found[hosts.addresses[SLOW]]["means"]


def test_a_host_with_a_full_disk_is_named(examined: dict[str, Any], hosts: SwitchedHosts) -> None:
    found = findings(examined, "disk")
    assert list(found) == [hosts.addresses[CUT]], examined["text"]
    assert "is full" in found[hosts.addresses[CUT]]["means"]


def test_a_host_with_a_tiny_shared_memory_is_named(examined: dict[str, Any], hosts: SwitchedHosts) -> None:
    found = findings(examined, "/dev/shm")
    assert list(found) == [hosts.addresses[SLOW]], examined["text"]
    assert "1 MiB" in found[hosts.addresses[SLOW]]["means"]


def test_a_host_with_a_slow_network_is_named(examined: dict[str, Any], hosts: SwitchedHosts) -> None:
    found = findings(examined, "bandwidth")
    assert list(found) == [hosts.addresses[SLOW]], examined["text"]
    assert "times slower" in found[hosts.addresses[SLOW]]["means"]


def test_no_run_is_tried_where_it_would_fail_and_the_report_says_that_it_would(
    examined: dict[str, Any],
) -> None:
    assert not examined["report"]["ok"]
    assert not any(finding["check"] == "all-reduce" for finding in examined["report"]["findings"])
    assert len(examined["report"]["hosts"]) == 4
    for finding in examined["report"]["findings"]:
        if finding["level"] == "error":
            assert finding["host"] in examined["text"]
            assert finding["host"] in examined["html"]
