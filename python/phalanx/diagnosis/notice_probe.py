"""What the program of `spark.phalanx.notice.command` does on a host, as the driver's executors have it there.

It travels to the executors by value and uses the standard library only, as `probe.py` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from typing import Any

# What looks once is over by then; what stays is ended.
_SECONDS = 3.0
_SHOWN = 200


def run_notice_command(command: str) -> dict[str, Any]:
    """Runs it once by the shell, as a task of a run does: its exit code, None if it stays, and what it said."""
    with tempfile.TemporaryFile() as said:
        running = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        try:
            code = running.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(OSError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        said.seek(0)
        lines = said.read(64 << 10).decode(errors="replace").splitlines()
    notices = [_notice(line) for line in lines]
    return {
        "command": command,
        "code": code,
        "said": next(
            (line[:_SHOWN] for line, notice in zip(lines, notices, strict=True) if notice is None), ""
        ),
        "notice": next((notice for notice in notices if notice is not None), None),
    }


def _notice(line: str) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        told = json.loads(line)
        return told if isinstance(told, dict) else None
    return None
