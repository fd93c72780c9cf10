"""What the tests share: a rank as a real process, a Spark session, and a guard against leftovers."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = PACKAGE_ROOT.parent

# The package under test is the one beside the tests, here and in every process that a test starts.
sys.path.insert(0, str(PACKAGE_ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":")


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in left:
        thread.join(5)
    assert not [t for t in left if t.is_alive()], "the test left threads behind"


@dataclass
class RankRun:
    """How a rank ended and what it left."""

    code: int
    out: str
    err: str
    notes: list[str]
    directory: Path

    @property
    def result(self) -> Any:
        return pickle.loads((self.directory / "result").read_bytes())

    @property
    def error(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.directory / "error.json").read_text())
        return record

    @property
    def left(self) -> set[str]:
        return {entry.name for entry in self.directory.iterdir()}


@pytest.fixture
def run_rank(tmp_path: Path) -> Callable[..., RankRun]:
    """Runs a payload as one rank, with a pipe for its notes, as a supervisor does."""

    def run(
        payload: bytes,
        *,
        rank: int = 0,
        cwd: Path | None = None,
        listens: bool = True,
        timeout: float = 50,
        **env: str,
    ) -> RankRun:
        directory = tmp_path / f"rank{rank}-{len(list(tmp_path.glob('rank*')))}"
        directory.mkdir()
        payload_file = tmp_path / f"{directory.name}.payload"
        payload_file.write_bytes(payload)
        reading, writing = os.pipe()
        if not listens:
            os.close(reading)
        environment = {
            **os.environ,
            "RANK": str(rank),
            "PHALANX_PAYLOAD": str(payload_file),
            "PHALANX_RANK_DIR": str(directory),
            "PHALANX_NOTES_FD": str(writing),
            **env,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "phalanx.rank"],
                env=environment,
                pass_fds=[writing],
                capture_output=True,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
            )
        finally:
            os.close(writing)
            lines = []
            if listens:
                with os.fdopen(reading, "rb") as pipe:
                    lines = pipe.read().decode().splitlines()
        notes = [json.loads(line)["phase"] for line in lines]
        return RankRun(done.returncode, done.stdout.decode(), done.stderr.decode(), notes, directory)

    return run
