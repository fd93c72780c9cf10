"""A standalone Spark cluster of real processes, as an operator starts it: a master, and a worker on each host.

TEST-12 (nobody-left): after `stop` no daemon, driver or executor of it is alive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.programs import Program, classic_conf, spark_home

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True)
class Host:
    """Where a daemon runs."""

    address: str = "127.0.0.1"
    prefix: Sequence[str] = ()
    """What comes before a command line that is to run there, such as `ip netns exec NAME`."""

    def start(
        self, command: Sequence[str | Path], out: Path, env: Mapping[str, str] | None = None
    ) -> Program:
        return Program([*self.prefix, *command], out, env={"SPARK_LOCAL_IP": self.address, **(env or {})})


class Standalone:
    """A master on the first host and a worker on each."""

    def __init__(
        self,
        folder: Path,
        hosts: Sequence[Host] = (Host(), Host()),
        cores: int | Sequence[int] = 2,
        daemon_conf: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.hosts = list(hosts)
        self.cores = [cores] * len(self.hosts) if isinstance(cores, int) else list(cores)
        self.workers: list[Program] = []
        self._daemons: list[Program] = []
        self._options = " ".join(f"-D{key}={value}" for key, value in (daemon_conf or {}).items())
        folder.mkdir(parents=True, exist_ok=True)
        try:
            master = self._daemon(self.hosts[0], "master", MASTER)
            self.url = self._said(master, r"Starting Spark master at (spark://\S+)")
            self.workers = [self._worker(i, host) for i, host in enumerate(self.hosts)]
            for worker in self.workers:
                self._said(worker, r"(Successfully registered with master)")
        except BaseException:
            self.stop()
            raise

    def conf(self, executor_cores: int = 1) -> dict[str, str]:
        """The settings of a driver on this machine: an executor on each host."""
        return classic_conf(self.url) | {
            "spark.cores.max": str(executor_cores * len(self.hosts)),
            "spark.executor.cores": str(executor_cores),
        }

    def restart_worker(self, index: int) -> None:
        """A new worker in place of one that was ended."""
        self.workers[index].end()
        self.workers[index] = self._worker(index, self.hosts[index])
        self._said(self.workers[index], r"(Successfully registered with master)")

    def drivers(self) -> list[Path]:
        """The work folders of drivers in cluster mode, each with `stdout` and `stderr`."""
        return sorted(self.folder.glob("work-*/driver-*"))

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.end()

    def _worker(self, index: int, host: Host) -> Program:
        work = self.folder / f"work-{index}"
        resources = ["--cores", str(self.cores[index]), "--memory", "3g", "--work-dir", str(work)]
        return self._daemon(host, f"worker-{index}", WORKER, *resources, self.url)

    def _daemon(self, host: Host, name: str, daemon: str, *arguments: str) -> Program:
        listen = ["--host", host.address, "--port", "0", "--webui-port", "0"]
        number = len(self._daemons)
        started = host.start(
            [spark_home() / "bin" / "spark-class", daemon, *listen, *arguments],
            self.folder / f"{number}-{name}.log",
            {"SPARK_DAEMON_JAVA_OPTS": self._options},
        )
        self._daemons.append(started)
        return started

    def _said(self, daemon: Program, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            return re.search(pattern, daemon.text)

        match = daemon.waits_for(f"the daemon says {pattern}", 60, found)
        return str(match[1])
