"""A history server of Spark's of a test's own, as docs/monitoring.md starts one."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import phalanx

from support.programs import Program, spark_home

HISTORY_SERVER = "org.apache.spark.deploy.history.HistoryServer"


class HistoryServer:
    """The pages of a server at an address that begins with `http://`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def page(self, path: str, patience: float = 60.0) -> str:
        """A page; waits until the server has read the application's log."""
        until = time.monotonic() + patience
        while True:
            try:
                with urllib.request.urlopen(self.address + path, timeout=30) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError as problem:
                if problem.code != 404 or time.monotonic() >= until:
                    raise
            time.sleep(0.2)


@contextlib.contextmanager
def serving(logs: Path, out: Path) -> Iterator[HistoryServer]:
    """A server of the event logs in a folder, which writes what it says to `out`; it is gone afterwards."""
    options = {"spark.history.fs.logDirectory": f"file:{logs}", "spark.history.ui.port": "0"}
    env = {
        "SPARK_DAEMON_CLASSPATH": str(phalanx.jar_path()),
        "SPARK_HISTORY_OPTS": " ".join(f"-D{key}={value}" for key, value in options.items()),
    }
    server = Program([spark_home() / "bin" / "spark-class", HISTORY_SERVER], out, env=env)
    try:
        said = r"started at (http://\S+)"
        match = server.waits_for("its address", 60, lambda: re.search(said, server.text))
        yield HistoryServer(str(match[1]))
    finally:
        server.end()
