"""A real MLflow server on the loopback, with its runs in SQLite."""

from __future__ import annotations

import contextlib
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from support.programs import Program


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The server's address; it ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    artifacts = ["--default-artifact-root", str(folder / "artifacts")]

    def answers() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    env = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with Program([*command, *store, *artifacts], folder / "out", env=env, cwd=folder) as server:
        server.waits_for("MLflow's server answers", 90, answers)
        yield address
