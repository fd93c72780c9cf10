"""A rank as a real process: what it is sent, how it ended, and what it left."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.rank import contract


@dataclass
class RankRun:
    """How a rank ended and what it left."""

    code: int
    out: str
    err: str
    notes: list[str]
    noted_error: dict[str, Any] | None
    directory: Path
    beats: list[dict[str, Any]]
    returned: bool

    @property
    def result(self) -> Any:
        return pickle.loads((self.directory / "result").read_bytes())

    @property
    def error(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.directory / "error.json").read_text())
        return record

    @property
    def left(self) -> set[str]:
        """What is in its folder at its end, but for what a node puts there before its start."""
        return {entry.name for entry in self.directory.iterdir()} - {contract.FILE_GROUPS_KEY}


def sent(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    """The payload of a call."""
    from phalanx.request.payload import function_payload

    return function_payload(fn, args, kwargs, sys_path=[])


def script(folder: Path, text: str, *args: object, name: str = "train.py") -> bytes:
    """The payload of a file with this text, which is left in `folder`."""
    from phalanx.request.payload import file_payload

    path = folder / name
    path.write_text(textwrap.dedent(text))
    return file_payload(path, args, sys_path=[])


def as_main(tmp_path: Path, text: str) -> bytes:
    """The payload of `train()` in a script run as a caller's __main__."""
    (tmp_path / "caller.py").write_text(
        textwrap.dedent(text) + "\nimport sys\nfrom phalanx.request.payload import function_payload\n"
        "if __name__ == '__main__':\n"
        "    sys.stdout.buffer.write(function_payload(train, (), {}, sys_path=[]))\n"
    )
    done = subprocess.run([sys.executable, str(tmp_path / "caller.py")], capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
