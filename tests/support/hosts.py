"""Several hosts in one machine: network namespaces. No address has a name, and a look-up says so at once.

TEST-13 (nothing-left): after `remove` no namespace, no interface and no file is left.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from support.cluster import Host

# An address for documentation (RFC 5737): the same on both hosts, so whoever takes it talks to itself.
DECOY = "198.51.100.7"
DECOY_NAME = "aa0"
# `ip netns exec` mounts what is in a folder of the namespace's name here over the files of /etc.
FILES = Path("/etc/netns")
# Nobody listens there, which is known at once.
NO_NAME_SERVER = "nameserver 127.0.0.1\noptions attempts:1 timeout:1\n"


AnyHosts = TypeVar("AnyHosts", bound="Hosts")


class Unavailable(Exception):
    """Namespaces can't be made here; the text says why."""


class Hosts:
    """Network namespaces, which see each other as `_join` has it, and nobody else."""

    def __init__(self, kind: str, addresses: Sequence[str], commands: Sequence[str] = ("ip",)) -> None:
        self.addresses = list(addresses)
        self.names = [f"{kind}{os.getpid()}{letter}" for letter in "abcdefgh"[: len(addresses)]]
        if missing := [command for command in commands if shutil.which(command) is None]:
            raise Unavailable(f"iproute2 is not there: no command {' and no '.join(missing)}")
        try:
            for name in self.names:
                ip("netns", "add", name)
                (FILES / name).mkdir(parents=True)
                (FILES / name / "resolv.conf").write_text(NO_NAME_SERVER)
                ip("-n", name, "link", "set", "lo", "up")
            self._join()
        except (subprocess.CalledProcessError, OSError) as problem:
            self.remove()
            raise Unavailable(str(getattr(problem, "stderr", problem)).strip()) from None
        except BaseException:
            self.remove()
            raise

    def _join(self) -> None:
        """Gives the namespaces interfaces and routes."""
        raise NotImplementedError

    def host(self, at: int) -> Host:
        return Host(self.addresses[at], ("ip", "netns", "exec", self.names[at]))

    def remove(self) -> None:
        for name in self.names:
            # Interfaces go with their namespace.
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(FILES / name, ignore_errors=True)


def made_or_skipped(make: Callable[[], AnyHosts]) -> Iterator[AnyHosts]:
    """For a fixture: the hosts, which are removed after it; the test is skipped where there can't be any."""
    try:
        made = make()
    except Unavailable as problem:
        pytest.skip(f"network namespaces can't be made here: {problem}")
    yield made
    made.remove()


class TwoHosts(Hosts):
    """Hosts `a` and `b`, joined by a veth pair.

    Each has another interface that leads nowhere, but is up, comes first by name, and has the default route.
    """

    def __init__(self) -> None:
        self.interfaces = ["fabric-a", "fabric-b"]
        self.hidden = "10.213.7.11"
        """Another address of host `a`, to which host `b` has no route."""
        super().__init__("phx", ["10.213.7.1", "10.213.7.2"])

    def host_with_disk(self, at: int, folder: Path) -> Host:
        """The host with a name of its own, and a disk of its own at `folder`: Spark's local directory there."""
        folder.mkdir(parents=True, exist_ok=True)
        own = (
            'hostname "$0" && mount -t tmpfs none "$1" && export SPARK_LOCAL_DIRS="$1" && shift && exec "$@"'
        )
        host = self.host(at)
        return Host(
            host.address, (*host.prefix, "unshare", "--uts", "sh", "-c", own, self.names[at], str(folder))
        )

    def _join(self) -> None:
        a, b = self.names
        ip("-n", a, "link", "add", self.interfaces[0], "type", "veth",
           "peer", "name", self.interfaces[1], "netns", b)  # fmt: skip
        for name, interface, address in zip(self.names, self.interfaces, self.addresses, strict=True):
            (FILES / name / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()} {name}\n")
            ip("-n", name, "link", "add", DECOY_NAME, "type", "veth", "peer", "name", "zz0")
            for up in (DECOY_NAME, "zz0", interface):
                ip("-n", name, "link", "set", up, "up")
            ip("-n", name, "address", "add", f"{DECOY}/24", "dev", DECOY_NAME)
            ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
            ip("-n", name, "route", "add", "default", "dev", DECOY_NAME)
        ip("-n", a, "address", "add", f"{self.hidden}/24", "dev", self.interfaces[0])
        ip("-n", b, "route", "add", "unreachable", self.hidden)


class SwitchedHosts(Hosts):
    """Hosts on one switch, each of which can be broken in its own way; all send at 400 Mbit/s."""

    def __init__(self, count: int) -> None:
        super().__init__("phs", [f"10.214.9.{at}" for at in range(1, count + 1)], ("ip", "tc"))

    def with_mounts(self, at: int, first: Sequence[Sequence[str]] = ()) -> Host:
        """A host on which these commands are run before any other, as mounts of its own."""
        host = self.host(at)
        script = " && ".join([*(shlex.join(command) for command in first), 'exec "$@"'])
        return Host(host.address, (*host.prefix, "sh", "-c", script, "sh"))

    def slow_down(self, at: int, rate: str, burst: str = "64k", latency: str = "50ms") -> None:
        """From now on the host sends at this rate; packets that would wait for longer than `latency` are lost."""
        bucket = ("tbf", "rate", rate, "burst", burst, "latency", latency)
        ip("netns", "exec", self.names[at], "tc", "qdisc", "replace", "dev", "fabric", "root", *bucket)

    def plug(self, at: int, how: str) -> None:
        """Pulls the host's cable out of the switch, `down`, or plugs it in, `up`."""
        ip("-n", self.names[-1], "link", "set", f"port{at}", how)

    def processes(self, at: int) -> list[psutil.Process]:
        """What runs on the host."""
        found = []
        for pid in ip("netns", "pids", self.names[at]).split():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found

    def leads_to(self, at: int, address: str) -> None:
        """On this host the machine's own name leads to this address."""
        lines = f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n"
        (FILES / self.names[at] / "hosts").write_text(lines)

    def drop(self, at: int, to: int, *match: object) -> None:
        """What this host sends to another one, in TCP packets of this kind, is lost, and so no connection is made."""
        ip("-n", self.names[at], "rule", "add", "pref", 20, "to", self.addresses[to],
           "ipproto", "tcp", *match, "blackhole")  # fmt: skip

    def let_through(self, at: int, ports: str) -> None:
        """Whatever is dropped otherwise, connections to and from these ports are not."""
        for end in ("sport", "dport"):
            ip("-n", self.names[at], "rule", "add", "pref", 10,
               "ipproto", "tcp", end, ports, "lookup", "main")  # fmt: skip

    def _join(self) -> None:
        switch = self.names[0] + "-switch"
        ip("netns", "add", switch)
        self.names.append(switch)
        ip("-n", switch, "link", "add", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        for at, address in enumerate(self.addresses):
            name, port = self.names[at], f"port{at}"
            self.leads_to(at, "127.0.0.1")
            ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "fabric", "netns", name)
            ip("-n", switch, "link", "set", port, "master", "switch", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "fabric")
            ip("-n", name, "link", "set", "fabric", "up")
            self.slow_down(at, "400mbit")


def ip(*words: Any) -> str:
    """What `ip` prints."""
    words = tuple(map(str, words))
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)
    return done.stdout
