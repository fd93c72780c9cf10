"""A driver in whose runs the system's clock jumps; prints one line of JSON.

clock_jumps.py FOLDER FACE...      a face is local, python or jvm; local is not the first

CLOCK_SHIFT   the file whose eight bytes `clock_shift.c` adds to the clock
DRIVER_CONF   the Spark settings as JSON
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from typing import Any

from session import over_faces

HOUR = 3600


def shift_clock(seconds: int) -> None:
    """From now on the clock of every process here is so much ahead of the true one."""
    with open(os.environ["CLOCK_SHIFT"], "r+b", buffering=0) as file:
        file.write(struct.pack("q", seconds))


def trains_while_the_clock_jumps() -> list[float]:
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("cpu:phalanx")
    began, sums = time.time(), []
    for step in range(40):
        if step in (10, 20, 30) and dist.get_rank() == 0:
            shift_clock({10: HOUR, 20: -24 * HOUR, 30: 24 * HOUR}[step])
        total = torch.ones(1000)
        dist.all_reduce(total)
        sums.append(float(total[0]))
        time.sleep(0.05)
    dist.barrier()
    jumped = time.time() - began
    dist.destroy_process_group()
    return [min(sums), max(sums), jumped]


def hangs_after_the_clock_was_set_back() -> None:
    import os
    import threading

    import torch
    import torch.distributed as dist

    dist.init_process_group("phalanx")
    dist.barrier()
    if os.environ["RANK"] == "1":
        shift_clock(-24 * HOUR)
    else:
        _work = dist.all_reduce(torch.ones(100), async_op=True)
    threading.Event().wait()


def raises_before_the_clock_was_set_back() -> None:
    import atexit
    import os
    import time

    if os.environ["RANK"] == "1":
        # The process ends, and is reported, after the other one.
        atexit.register(time.sleep, 2)
        raise ValueError("first")
    time.sleep(1)
    shift_clock(-24 * HOUR)
    raise KeyError("second")


def is_killed_once() -> str:
    import os
    import signal

    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt == "0" and os.environ["RANK"] == "1":
        shift_clock(-24 * HOUR)
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt


def does_not_want_to_end(folder: str) -> None:
    import os
    import signal
    import time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"{folder}/deaf-{os.environ['RANK']}", "w").close()
    while True:
        time.sleep(1)


def tried(run: Any) -> dict[str, Any]:
    from phalanx import TrainingError

    try:
        return {"results": run.results(90)}
    except TrainingError as error:
        doing = [report.doing for report in error.ranks]
        idle = [report.idle_seconds for report in error.ranks]
        return {
            "kind": error.kind,
            "rank": error.rank,
            "message": error.message,
            "doing": doing,
            "idle": idle,
        }


def tries(folder: str, face: str) -> dict[str, Any]:
    """What became of a run at each jump, over a stage."""
    from phalanx import TorchDistributor

    seen: dict[str, Any] = {}
    os.mkdir(folder)

    def attempt(train: Callable[..., Any], *args: Any, **options: Any) -> None:
        shift_clock(0)
        distributor = TorchDistributor(2, local_mode=face == "local", use_gpu=False, **options)
        began = time.monotonic()
        run = distributor.start(train, *args)
        if train is does_not_want_to_end:
            while sum(name.startswith("deaf-") for name in os.listdir(folder)) < 2:
                time.sleep(0.02)
            shift_clock(-24 * HOUR)
            began = time.monotonic()
            run.cancel()
        told = tried(run)
        told |= {"seconds": time.monotonic() - began, "phases": [phase.seconds for phase in run.phases]}
        seen[train.__name__] = told

    attempt(trains_while_the_clock_jumps, hang_timeout=20)
    attempt(hangs_after_the_clock_was_set_back, hang_timeout=3)
    attempt(raises_before_the_clock_was_set_back)
    attempt(is_killed_once, max_restarts=1)
    attempt(does_not_want_to_end, folder)
    shift_clock(0)
    return seen


if __name__ == "__main__":
    over_faces(lambda folder, face: tries(f"{folder}/{face}", face))
