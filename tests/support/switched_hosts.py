"""Several hosts in one machine: network namespaces on one switch, each of which can be broken in its own way.

A host's commands run in a mount namespace of their own, so that files of one host can be others than those of the rest.

SWITCH-1 (nothing-left): after `remove` no namespace, no interface and no file is left.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence

from support.cluster import Host
from support.hosts import FILES, NO_NAME_SERVER, Unavailable, ip

_NETWORK = "10.214.9"


class SwitchedHosts:
    """Hosts that see each other and nobody else; all send at 400 Mbit/s."""

    def __init__(self, count: int) -> None:
        self.switch = f"phs{os.getpid()}"
        self.names = [f"phs{os.getpid()}{letter}" for letter in "abcdefgh"[:count]]
        self.addresses = [f"{_NETWORK}.{at}" for at in range(1, count + 1)]
        if shutil.which("ip") is None or shutil.which("tc") is None:
            raise Unavailable("there is no `ip` or no `tc` command (iproute2)")
        try:
            self._make()
        except (subprocess.CalledProcessError, OSError) as error:
            self.remove()
            raise Unavailable(str(getattr(error, "stderr", error)).strip()) from None
        except BaseException:
            self.remove()
            raise

    def host(self, at: int, first: Sequence[Sequence[str]] = ()) -> Host:
        """A host on which these commands are run before any other, as mounts of its own."""
        script = " && ".join([*(shlex.join(command) for command in first), 'exec "$@"'])
        return Host(self.addresses[at], ("ip", "netns", "exec", self.names[at], "sh", "-c", script, "sh"))

    def slow_down(self, at: int, rate: str) -> None:
        """From now on the host sends at this rate."""
        tc = [
            "tc",
            "qdisc",
            "replace",
            "dev",
            "fabric",
            "root",
            "tbf",
            "rate",
            rate,
            "burst",
            "64k",
            "latency",
            "50ms",
        ]
        ip("netns", "exec", self.names[at], *tc)

    def leads_to(self, at: int, address: str) -> None:
        """On this host the machine's own name leads to this address."""
        (FILES / self.names[at] / "hosts").write_text(
            f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n"
        )

    def drop(self, at: int, to: int, *match: object) -> None:
        """What this host sends to another one, in TCP packets of this kind, is lost, and so no connection is made."""
        ip("-n", self.names[at], "rule", "add", "pref", 20, "to", self.addresses[to],
           "ipproto", "tcp", *match, "blackhole")  # fmt: skip

    def let_through(self, at: int, ports: str) -> None:
        """Whatever is dropped otherwise, connections to and from these ports are not."""
        for end in ("sport", "dport"):
            ip(
                "-n",
                self.names[at],
                "rule",
                "add",
                "pref",
                10,
                "ipproto",
                "tcp",
                end,
                ports,
                "lookup",
                "main",
            )

    def remove(self) -> None:
        for name in [*self.names, self.switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(FILES / name, ignore_errors=True)

    def _make(self) -> None:
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "up")
        for at, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            ip("netns", "add", name)
            (FILES / name).mkdir(parents=True)
            (FILES / name / "resolv.conf").write_text(NO_NAME_SERVER)
            self.leads_to(at, "127.0.0.1")
            port = f"port{at}"
            ip(
                "-n",
                self.switch,
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "fabric",
                "netns",
                name,
            )
            ip("-n", self.switch, "link", "set", port, "master", "switch", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "fabric")
            for interface in ("lo", "fabric"):
                ip("-n", name, "link", "set", interface, "up")
            self.slow_down(at, "400mbit")
