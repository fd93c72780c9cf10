"""What the tests share: a rank as a real process, a Spark session, and a guard against leftovers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import sessions
from support.backend_ranks import Ranks, shared
from support.one_rank import RankRun


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in left:
        thread.join(5)
    assert not [t for t in left if t.is_alive()], "the test left threads behind"


@pytest.fixture(scope="session")
def ranks() -> Ranks:
    """Processes with torch, for the tests of torch's process groups."""
    return shared()


@pytest.fixture
def run_rank(tmp_path: Path) -> Callable[..., RankRun]:
    """Runs a payload as one rank, with a pipe for its notes, as a node does."""

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
        (directory / "groups-key").write_bytes(bytes(32))
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
        notes = list(map(json.loads, lines))
        phases = [note["phase"] for note in notes if "phase" in note]
        beats = [note["beat"] for note in notes if "beat" in note]
        error = next((note["error"] for note in notes if "error" in note), None)
        out, err = done.stdout.decode(), done.stderr.decode()
        return RankRun(done.returncode, out, err, phases, error, directory, beats)

    return run


@pytest.fixture(scope="module")
def spark() -> Any:
    """A classic session with one core."""
    return sessions.one_core({})
