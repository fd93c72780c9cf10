"""What the tests share: a rank as a real process, and a guard against leftovers. None of them starts Spark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import node_end
from support.backend_ranks import Ranks, shared
from support.leftovers import no_thread_is_left
from support.one_rank import RankRun

__all__ = ["no_thread_is_left"]


@pytest.fixture(scope="session")
def ranks() -> Ranks:
    """Processes with torch, for the tests of torch's process groups."""
    return shared()


@pytest.fixture
def run_rank(tmp_path: Path) -> Callable[..., RankRun]:
    """Runs a payload as one rank, with a socket for its notes, as a node does."""

    def run(
        payload: bytes,
        *,
        rank: int = 0,
        cwd: Path | None = None,
        listens: bool = True,
        told: Callable[[socket.socket], None] | None = None,
        timeout: float = 50,
        **env: str,
    ) -> RankRun:
        directory = tmp_path / f"rank{rank}-{len(list(tmp_path.glob('rank*')))}"
        directory.mkdir()
        (directory / "groups-key").write_bytes(bytes(32))
        payload_file = tmp_path / f"{directory.name}.payload"
        payload_file.write_bytes(payload)
        node, end = node_end.pair()
        if told is not None:
            told(node)
        if not listens:
            node.close()
        environment = {
            **os.environ,
            "RANK": str(rank),
            "PHALANX_PAYLOAD": str(payload_file),
            "PHALANX_RANK_DIR": str(directory),
            "PHALANX_NOTES_FD": str(end.fileno()),
            **env,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "phalanx.rank"],
                env=environment,
                pass_fds=[end.fileno()],
                capture_output=True,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
            )
        finally:
            end.close()
            notes = node_end.notes_at(node) if listens else []
            node.close()
        phases = [note["phase"] for note in notes if "phase" in note]
        beats = [note["beat"] for note in notes if "beat" in note]
        error = next((note["error"] for note in notes if "error" in note), None)
        out, err = done.stdout.decode(), done.stderr.decode()
        returned = {"returned": True} in notes
        return RankRun(done.returncode, out, err, phases, error, directory, beats, returned)

    return run
