"""A Prometheus server of a test's own, which scrapes one page; Debian's package `prometheus` has the program."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

PROGRAM = shutil.which("prometheus")


def queries(dashboard: Path) -> list[str]:
    """What the panels of a dashboard for Grafana ask, of all applications, with the rates of a short time."""
    panels = json.loads(dashboard.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    return [text.replace("$job", ".*").replace("[5m]", "[10s]") for text in asked]


class Prometheus:
    """Scrapes `page`, an address without `http://`, every half second."""

    def __init__(self, address: str) -> None:
        self._address = address

    def without_answer(self, asked: list[str], patience: float = 30.0) -> list[str]:
        """Those of the queries that nothing answers within `patience` seconds."""
        until = time.monotonic() + patience
        while (left := [query for query in asked if not self._answers(query)]) and time.monotonic() < until:
            time.sleep(0.2)
        return left

    def _answers(self, query: str) -> bool:
        """Whether there are values; an error of the server's, as of a query that doesn't parse, is raised."""
        url = f"http://{self._address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(json.load(answer)["data"]["result"])


@contextlib.contextmanager
def scraping(host: str, path: str) -> Iterator[Prometheus]:
    """A server that scrapes a page of `host`, a name and a port; it is gone afterwards."""
    assert PROGRAM is not None
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="prometheus-") as folder:
        job = {"job_name": "phalanx", "metrics_path": path, "static_configs": [{"targets": [host]}]}
        config = Path(folder) / "prometheus.yml"
        # JSON is YAML.
        config.write_text(json.dumps({"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}))
        options = [
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={address}",
        ]
        with open(Path(folder) / "log", "wb") as log:
            server = subprocess.Popen([PROGRAM, *options], stdout=log, stderr=log)
        try:
            _wait(server, address, Path(folder) / "log")
            yield Prometheus(address)
        finally:
            server.kill()
            server.wait()


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
            return
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
