"""A driver whose disk for temporary files is full at one moment or another; prints one line of JSON.

full_disk.py DISK FACE...      a face is local, python or jvm; local is not the first

DISK          a small file system that holds all temporary files of the driver and its executors
DRIVER_CONF   the Spark settings as JSON
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from session import over_faces

FILLER = "filler"


def fill(disk: str, leave: int = 0) -> None:
    """Fills the disk, but for so many bytes."""
    with open(os.path.join(disk, FILLER), "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 12))
        file.truncate(file.tell() - leave)


def fill_inodes(disk: str) -> None:
    """Leaves no room for another file."""
    folder = os.path.join(disk, FILLER)
    os.mkdir(folder)
    with contextlib.suppress(OSError):
        for i in range(10**6):
            os.close(os.open(os.path.join(folder, str(i)), os.O_CREAT | os.O_WRONLY))


def empty(disk: str) -> None:
    path = os.path.join(disk, FILLER)
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)


def files(disk: str) -> list[str]:
    """What runs leave for more than a moment: everything of ours but logs, and folders of jobs that have ended."""
    found = []
    for folder, folders, names in os.walk(disk):
        found += [
            os.path.join(folder, name)
            for name in [*names, *folders]
            if "phalanx" in folder + name and ("task-" in name or "results-" in name or "rank-" in name)
        ]
    return sorted(
        path for path in found if not path.endswith((".log", ".log.1")) and "checkpoints" not in path
    )


class Tries:
    def __init__(self, disk: str, face: str) -> None:
        from phalanx import TorchDistributor

        self.disk = disk
        self.distributor = TorchDistributor(num_processes=2, local_mode=face == "local", use_gpu=False)
        self.seen: dict[str, Any] = {}

    def run(self, name: str, train: Callable[..., Any], *args: Any) -> None:
        """One run: its result, or how it failed; what it showed; what it left."""
        from phalanx import TrainingError

        before = set(files(self.disk))
        seen: dict[str, Any] = {}
        shown = io.StringIO()
        began = time.monotonic()
        try:
            with contextlib.redirect_stdout(shown):
                seen["result"] = self.distributor.run(train, *args)
        except TrainingError as error:
            seen |= {"kind": error.kind, "message": error.message, "type": error.exception_type}
            seen |= {"rank": error.rank, "last_lines": error.last_lines}
        except OSError as error:
            seen |= {"kind": "OSError", "message": str(error)}
        seen |= {"seconds": time.monotonic() - began, "shown": shown.getvalue()}
        empty(self.disk)
        # Its results last as long as the run, and would make room for the next one.
        self.distributor.last_run = None
        gc.collect()
        seen["left"] = self._left(before)
        self.seen[name] = seen

    def _left(self, before: set[str]) -> list[str]:
        until = time.monotonic() + 10
        while (left := sorted(set(files(self.disk)) - before)) and time.monotonic() < until:
            time.sleep(0.05)
        return left


def well() -> str:
    return "well"


def writes_on_a_full_disk(disk: str) -> str:
    import os
    import time

    print("before", flush=True)
    if os.environ["RANK"] == "1":
        while not os.path.exists(f"{disk}/done"):
            time.sleep(0.02)
        return "well"
    # The folder of the rank is in that of the task, and this in that of the job, where the log is.
    log = Path(os.environ["PHALANX_RANK_DIR"]).parents[1] / "rank-0.log"
    until = time.monotonic() + 60
    while "before\n" not in log.read_text():
        assert time.monotonic() < until, f"{log} has no line of this rank"
        time.sleep(0.02)
    fill(disk)
    for i in range(1000):
        print("not kept", i)
    # Until the node has tried to write them down.
    time.sleep(0.5)
    empty(disk)
    print("after")
    open(f"{disk}/done", "w").close()
    return "well"


def returns_more_than_fits() -> bytes:
    import os

    return bytes(4 << 20) if os.environ["RANK"] == "0" else b""


def raises_on_a_full_disk(disk: str) -> None:
    import os
    import time

    if os.environ["RANK"] == "0":
        time.sleep(600)
    fill(disk)
    raise ValueError("what the user did")


def saves_on_a_full_disk(disk: str) -> list[Any]:
    import os
    import time

    import torch
    from phalanx import checkpoint

    if os.environ["RANK"] == "1":
        # Its result, however short, needs room at the driver.
        while not os.path.exists(f"{disk}/done"):
            time.sleep(0.02)
        return []
    folder = f"{disk}/checkpoints"
    os.mkdir(folder)
    said = []
    for step in (1, 2, 3):
        if step == 2:
            fill(disk, leave=1 << 20)
        try:
            checkpoint.save({"weights": torch.full((1 << 20,), float(step))}, step, directory=folder)
        except OSError as error:
            said.append(f"step {step}: {error.strerror}")
            saved = checkpoint.latest(directory=folder)
            assert saved is not None
            said += [saved[0], float(saved[1]["weights"].sum()), sorted(os.listdir(folder))]
            empty(disk)
    saved = checkpoint.latest(directory=folder)
    assert saved is not None
    open(f"{disk}/done", "w").close()
    return [*said, saved[0]]


def tries(disk: str, face: str) -> dict[str, Any]:
    """What became of a run at each moment, over a stage."""
    made = Tries(disk, face)
    # So that what is made once for all runs is there: the jar's files, the warm pools.
    made.run("warm", well)
    fill(disk)
    made.run("full before", well)
    fill_inodes(disk)
    made.run("no inode before", well)
    made.run("output", writes_on_a_full_disk, disk)
    # None, where the run failed: the test shows how.
    done = Path(disk, "done")
    done.unlink(missing_ok=True)
    made.run("error", raises_on_a_full_disk, disk)
    made.run("checkpoint", saves_on_a_full_disk, disk)
    done.unlink(missing_ok=True)
    shutil.rmtree(f"{disk}/checkpoints", ignore_errors=True)
    fill(disk, leave=2 << 20)
    made.run("result", returns_more_than_fits)
    # It fits once, and not a second time.
    fill(disk, leave=6 << 20)
    made.run("result at the driver", returns_more_than_fits)
    made.run("after", well)
    return made.seen


if __name__ == "__main__":
    over_faces(tries)
