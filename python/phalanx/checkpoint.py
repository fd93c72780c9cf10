"""Checkpoints that are whole or absent, for training code that goes on after a restart.

CHECK-1: `latest` never takes a file that was not written to its end, whenever the writer was killed, and on a local
file system also when the host lost its power: data, then name, then folder are written through.

>>> saved = checkpoint.latest()
>>> step, state = saved if saved else (0, None)
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, BinaryIO

_NAME = re.compile(r"step-(\d{10})\.pt")

KEEP = 2


def checkpoint_dir() -> str:
    """The folder for checkpoints of this job, made if it isn't there.

    `PHALANX_CHECKPOINT_DIR`, where that is set (by `spark.executorEnv.PHALANX_CHECKPOINT_DIR`): a folder that all hosts
    share, which a later run finds again. Else a folder beside the job's logs on this host: it outlives restarts in
    place, and neither the host nor the next few jobs. Outside a rank `checkpoints` in the working directory.
    """
    given = os.environ.get("PHALANX_CHECKPOINT_DIR")
    own = os.environ.get("PHALANX_RANK_DIR")
    if given:
        path = given
    elif own:
        # the rank's folder is in its task's, and that in the job's
        path = os.path.join(os.path.dirname(os.path.dirname(own)), "checkpoints")
    else:
        path = os.path.abspath("checkpoints")
    os.makedirs(path, exist_ok=True)
    return path


def save(state: Any, step: int, *, directory: str | None = None, keep: int = KEEP) -> str:
    """Writes `state` by `torch.save` as the checkpoint of `step`; returns its path.

    Ranks that hold the same state save it once: call this in rank 0. The `keep` newest stay.

    Raises `OSError` where it can't be written; older checkpoints are then as they were.
    """
    import torch

    folder = checkpoint_dir() if directory is None else directory
    path = os.path.join(folder, f"step-{step:010d}.pt")
    part = f"{path}.part-{os.getpid()}"
    try:
        with open(part, "wb") as file:
            _write(torch, state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    _write_through(folder)
    for old in _steps(folder)[: -max(keep, 1)]:
        with contextlib.suppress(FileNotFoundError):  # another rank was quicker
            os.unlink(os.path.join(folder, f"step-{old:010d}.pt"))
    return path


def latest(*, directory: str | None = None, map_location: Any = "cpu") -> tuple[int, Any] | None:
    """The newest whole checkpoint: its step, and what was saved; None if there is none.

    Reads what `save` wrote by pickle: give it only folders that you trust.
    """
    import torch

    folder = checkpoint_dir() if directory is None else directory
    steps = _steps(folder)
    if not steps:
        return None
    path = os.path.join(folder, f"step-{steps[-1]:010d}.pt")
    return steps[-1], torch.load(path, map_location=map_location, weights_only=False)


def _write(torch: Any, state: Any, file: BinaryIO) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as problem:
        # What torch's writer says when it finds, at its end, that the file refused to grow.
        if isinstance(problem.__context__, OSError):
            raise problem.__context__ from None
        raise


def _steps(folder: str) -> list[int]:
    found = (_NAME.fullmatch(name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in found if match)


def _write_through(folder: str) -> None:
    """A rename lasts once the folder is on disk; some network file systems know no such thing."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)
