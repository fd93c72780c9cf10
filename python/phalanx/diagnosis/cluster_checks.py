"""What the facts of several hosts mean beside one another. Pure functions: facts in, findings out."""

from __future__ import annotations

import ipaddress
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .finding import Facts, Finding, Level, Need, or_ok, whole

# One connection of Python's that is faster measures processors, and no network.
_FAST_BYTES = 500e6
_SLOW_SHARE = 1 / 3


def judged_cluster(hosts: list[Facts], need: Need) -> Iterator[Finding]:
    """All findings that need the facts of several hosts; `hosts` has one task of each host."""
    if not hosts:
        return
    yield from versions(hosts, need)
    yield from or_ok(clocks(hosts), "time", lambda: "The hosts' clocks agree with the driver's.")
    yield from or_ok(mtus(hosts), "MTU", lambda: _mtu_summary(hosts))
    if any(facts.get("links") for facts in hosts):
        yield from or_ok(
            links(hosts), "ports", lambda: f"The {len(hosts)} hosts reach each other, both ways."
        )
        yield from or_ok(
            leading_names(hosts),
            "names of hosts",
            lambda: "Every host's name resolves correctly on every other host that was asked.",
        )
        yield from or_ok(speeds(hosts), "bandwidth", lambda: _speed_summary(hosts))
        yield from or_ok(
            processors(hosts), "processors", lambda: "No host computes far slower than the others."
        )


def versions(hosts: list[Facts], need: Need) -> Iterator[Finding]:
    """Python, torch, CUDA, NCCL, glibc, packages and jars: the same everywhere."""
    install = "Install the same on every host, as by one environment for all: spark.archives, or an image."
    yield from _same(hosts, "Python", _python_of, "error", "What travels between them is pickled.", install)
    yield from _same(
        hosts, "torch version", _torch_of, "error", "Ranks of one run need the same torch.", install
    )
    gpu: Level = "error" if need.use_gpu else "warning"
    yield from _same(
        hosts,
        "CUDA version",
        lambda f: f.get("torch", {}).get("cuda"),
        gpu,
        "Ranks compute with different CUDAs.",
        install,
    )
    yield from _same(
        hosts,
        "NCCL",
        lambda f: f.get("torch", {}).get("nccl"),
        gpu,
        "Different versions of NCCL don't work together.",
        install,
    )
    yield from _same(
        hosts,
        "glibc",
        lambda f: f.get("python", {}).get("glibc"),
        "warning",
        "A library that is built on one host may not load on another.",
        "Use one image for all hosts.",
    )
    yield from _same(
        hosts,
        "jar",
        lambda f: ", ".join(f["jars"]) if f.get("jars") else None,
        "error",
        "Executors with different jars don't understand the driver.",
        "Remove jars of Phalanx from Spark's own folder on the hosts, and give one by spark.jars.",
    )
    drivers = [gpu_driver for facts in hosts if (gpu_driver := _gpus_of(facts))]
    if drivers:
        yield from _same(hosts, "GPU models", _gpus_of, "warning", "All ranks wait for the slowest one.", "")
    yield from _packages(hosts)


def _python_of(facts: Facts) -> str | None:
    found = facts.get("python")
    return f"{found['implementation']} {found['version']}" if found else None


def _torch_of(facts: Facts) -> str | None:
    """What an import gives, and what the package says of itself where they differ; None without an import."""
    imported: str | None = facts.get("torch", {}).get("version")
    said: str | None = facts.get("packages", {}).get("torch")
    same = said is None or imported is None or said.split("+")[0] == imported.split("+")[0]
    return imported if same else f"{imported} (its package says {said})"


def _gpus_of(facts: Facts) -> str | None:
    gpus = facts.get("gpus", {}).get("gpus")
    if not gpus:
        return None
    return f"{len(gpus)} of {gpus[0].get('name')} with driver {gpus[0].get('driver_version')}"


def _same(
    hosts: list[Facts], check: str, of: Callable[[Facts], str | None], level: Level, means: str, do: str
) -> Iterator[Finding]:
    """The hosts that have another value than most; where two values are equally frequent, all of them."""
    values = {facts["host"]: value for facts in hosts if (value := of(facts)) is not None}
    if not values:
        return
    counted = Counter(values.values()).most_common()
    if len(counted) == 1:
        where = (
            "every host"
            if len(values) == len(hosts)
            else f"the {len(values)} of {len(hosts)} hosts that reported it"
        )
        yield Finding("ok", "", check, f"{counted[0][0]} on {where}.")
        return
    usual = None if counted[1][1] == counted[0][1] else counted[0][0]
    for host, value in values.items():
        if value == usual:
            continue
        others: dict[str, list[str]] = defaultdict(list)
        for other, theirs in values.items():
            if theirs != value:
                others[theirs].append(other)
        beside = "; ".join(f"{theirs} on {whole(places)}" for theirs, places in others.items())
        yield Finding(_milder(level, values.values()), host, check, f"{value} here, {beside}. {means}", do)


def _milder(level: Level, values: Iterable[str]) -> Level:
    """What differs only in a patch of Python's, or behind a plus as CPU and CUDA builds do, is a warning."""
    bare = {re.sub(r"\+\S*", "", value) for value in values}
    if bare and all(value.startswith("CPython ") for value in bare):
        bare = {value.rpartition(".")[0] for value in bare}
    return level if len(bare) > 1 else "warning"


def _packages(hosts: list[Facts]) -> Iterator[Finding]:
    there = {facts["host"]: facts["packages"] for facts in hosts if "packages" in facts}
    if not there:
        return
    usual = {
        name: Counter(packages.get(name) for packages in there.values()).most_common(1)[0][0]
        for name in set().union(*there.values())
        if name != "torch"
    }
    some = False
    for host, packages in there.items():
        differ = sorted(name for name, version in usual.items() if packages.get(name) != version)
        if differ:
            some = True
            shown = [
                f"{name} {packages.get(name, 'missing')} (else {usual[name] or 'missing'})" for name in differ
            ]
            level: Level = "error" if "phalanx" in differ else "warning"
            yield Finding(
                level,
                host,
                "package versions",
                f"Packages differ from those of the other hosts: {whole(shown)}.",
                "Use one environment on all hosts: spark.archives, or an image.",
            )
    if not some:
        yield Finding("ok", "", "package versions", f"{len(usual) + 1} packages, the same on every host.")


def clocks(hosts: list[Facts]) -> Iterator[Finding]:
    """Clocks beside the driver's, or where that isn't reached, beside the other hosts'."""
    for facts in hosts:
        link = facts.get("driver_link", {})
        told = [link] if "ahead" in link else [link for link in facts.get("links", []) if "ahead" in link]
        if not told:
            continue
        behind = statistics.median(link["ahead"] for link in told)
        surely = abs(behind) - max(link["error"] for link in told)
        if surely > 1:
            word = "behind" if behind > 0 else "ahead"
            beside = "the driver" if "ahead" in link else "other hosts"
            yield Finding(
                "error" if surely > 240 else "warning",
                facts["host"],
                "time",
                f"The clock here is {abs(behind):.1f} s {word} of {beside}. Logs and metrics have wrong times; storage "
                "and Kerberos refuse a host that is minutes off.",
                "Run a time service there: chrony or systemd-timesyncd.",
            )


def mtus(hosts: list[Facts]) -> Iterator[Finding]:
    there = {f["host"]: f["interface"] for f in hosts if "mtu" in f.get("interface", {})}
    if len(hosts) > 1:
        for host, found in there.items():
            if ipaddress.ip_address(found["address"]).is_loopback:
                yield Finding(
                    "error",
                    host,
                    "interface",
                    f"A run would take this host's address {found['address']}, which no other host can reach.",
                    "Set spark.driver.host to an address that the hosts reach, or correct /etc/hosts here.",
                )
    usual = Counter(found["mtu"] for found in there.values()).most_common(1)
    for host, found in there.items():
        if found["mtu"] != usual[0][0]:
            yield Finding(
                "warning",
                host,
                "MTU",
                f"Interface {found['name']} has an MTU of {found['mtu']}, those of most hosts {usual[0][0]}. Large "
                "packets may be lost on the way, and then connections stand still as soon as data flow.",
                "Set the same MTU on all hosts of this network.",
            )


def _mtu_summary(hosts: list[Facts]) -> str:
    found = sorted(
        {f"{f['interface']['name']} with {f['interface'].get('mtu')}" for f in hosts if "interface" in f}
    )
    return f"A run would take the interface {whole(found)}."


def links(hosts: list[Facts]) -> Iterator[Finding]:
    """Which host is at fault, if connections fail: the one with the most that fail, then the next one."""
    failed = [
        (facts["host"], link) for facts in hosts for link in facts.get("links", []) if "problem" in link
    ]
    while failed:
        counted: Counter[str] = Counter()
        for source, link in failed:
            counted[source] += 1
            counted[link["to"]] += 1
        most = counted.most_common(1)[0][1]
        candidates = [host for host, count in counted.items() if count == most]
        # Alone with one peer: a host that has no way is at fault itself, one that doesn't answer is, too.
        source, link = failed[0]
        first = source if link["problem"] == "unreachable" else link["to"]
        culprit = first if first in candidates else candidates[0]
        yield _broken(culprit, failed)
        failed = [(a, link) for a, link in failed if culprit not in (a, link["to"])]


_SAID = {
    "timeout": "no answer, as behind a firewall that drops",
    "refused": "refused",
    "stranger": "something else answers there",
}


def _broken(host: str, failed: list[tuple[str, dict[str, Any]]]) -> Finding:
    to: dict[str, list[str]] = defaultdict(list)
    away: dict[str, list[str]] = defaultdict(list)
    for source, link in failed:
        said = _SAID.get(link["problem"], f"not reachable ({link['text']})")
        if link["to"] == host:
            to[f"{said} at {link['address']} port {link['port']}"].append(source)
        elif source == host:
            away[said].append(link["to"])
    said_to = [f"from {whole(sources)}: {said}" for said, sources in to.items()]
    said_away = [f"to {whole(list(dict.fromkeys(targets)))}: {said}" for said, targets in away.items()]
    return Finding(
        "error",
        host,
        "ports",
        f"Connections fail {'; '.join([*said_to, *said_away])}. Ranks of different hosts could not reach each other.",
        "Open the ports of this host to the others, those that the system hands out too "
        "(net.ipv4.ip_local_port_range); spark.phalanx.store.port fixes that of the store only.",
    )


def leading_names(hosts: list[Facts]) -> Iterator[Finding]:
    """Where Spark knows a host by a name: whether that leads other hosts to it."""
    wrong: dict[tuple[str, str], list[str]] = defaultdict(list)
    for facts in hosts:
        for link in facts.get("links", []):
            found = link.get("name_leads_to")
            if found is None:
                continue
            # Every host has a loopback of its own.
            its = {address for address in link["addresses"] if not ipaddress.ip_address(address).is_loopback}
            if not set(found) & {*its, link["address"], link["to"]}:
                wrong[facts["host"], ", ".join(found) or link.get("name_problem", "nothing")].append(
                    link["to"]
                )
    for (host, found), others in wrong.items():
        yield Finding(
            "error",
            host,
            "names of hosts",
            f"The name {whole(others)} resolves here to {found}, which is not an address of that host.",
            "Correct the DNS, or /etc/hosts of this host.",
        )


def rates(hosts: list[Facts]) -> list[tuple[str, str, float]]:
    """Who sent to whom, and how many bytes a second arrived."""
    return [
        (facts["host"], speed["to"], speed["bytes"] / speed["seconds"])
        for facts in hosts
        for speed in facts.get("speeds", [])
        if "bytes" in speed
    ]


def speeds(hosts: list[Facts]) -> Iterator[Finding]:
    """A host is slow if the best that it sends, or is sent, is far below what the others do among themselves."""
    for facts in hosts:
        for speed in facts.get("speeds", []):
            if "problem" in speed and speed["problem"] != "late":
                yield Finding(
                    "error",
                    facts["host"],
                    "bandwidth",
                    f"A connection to {speed['to']} is made and then stands still: {speed['text']}. Large packets "
                    "may be lost on the way.",
                    "Compare the MTUs of the hosts and of what is between them.",
                )
    measured = rates(hosts)
    for facts in hosts:
        host = facts["host"]
        sent = [(rate, to) for source, to, rate in measured if source == host]
        received = [(rate, source) for source, to, rate in measured if to == host]
        among = [rate for source, to, rate in measured if host not in (source, to)]
        if not among and sent and received:  # two hosts: the other direction is what there is to compare with
            among, received = [max(received)[0]], []
        for direction, found in (("sends", sent), ("receives", received)):
            if not found or not among:
                continue
            best, usual = max(found)[0], statistics.median(among)
            if best < usual * _SLOW_SHARE and best < _FAST_BYTES:
                peers = whole([peer for _, peer in found])
                yield Finding(
                    "warning",
                    host,
                    "bandwidth",
                    f"This host {direction} {rate_text(best)} at best "
                    f"({'to' if direction == 'sends' else 'from'} {peers}), the others {rate_text(usual)}: "
                    f"it is {usual / best:.0f} times slower, and every all-reduce waits "
                    "for it.",
                    "Look at its network card, cable and switch port (ethtool), and at what limits its container.",
                )


def _speed_summary(hosts: list[Facts]) -> str:
    found = [rate for _, _, rate in rates(hosts)]
    if not found:
        return "It was not measured."
    return f"{rate_text(min(found))} to {rate_text(max(found))} on one connection between two hosts."


def processors(hosts: list[Facts]) -> Iterator[Finding]:
    passes = {facts["host"]: facts["cpu"]["passes"] for facts in hosts if "cpu" in facts}
    for host, speed in passes.items():
        others = [other for name, other in passes.items() if name != host]
        if others and speed < statistics.median(others) * _SLOW_SHARE:
            yield Finding(
                "warning",
                host,
                "processors",
                f"A core here computes {statistics.median(others) / speed:.0f} times slower than those of the other "
                "hosts, and all ranks wait for the slowest one.",
                "Look at its clock (a governor, heat), and at who else uses the machine.",
            )


def rate_text(rate: float) -> str:
    """Bytes a second as people say them."""
    return f"{rate / 1e9:.1f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"
