"""A real MLflow server on the loopback, with its runs in SQLite."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from support.programs import Program

# What it logs once it takes requests, with the port that the system gave it.
RUNNING = re.compile(r"Uvicorn running on (http://127\.0\.0\.1:\d+) ")


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The server's address; it ends with the block."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", "0"]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    artifacts = ["--default-artifact-root", str(folder / "artifacts")]
    env = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with Program([*command, *store, *artifacts], folder / "out", env=env, cwd=folder) as server:
        where = server.waits_for("MLflow's server answers", 90, lambda: RUNNING.search(server.text))
        yield where[1]
