"""What a rank can do wrong, and where in its life: the words of the fault matrix. Runs in ranks.

`train` is what both ranks run; at `phase` the culprit does its `misdeed`. Each rank first notes its process and the
pool that it comes from in the test's folder.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

LINE = "flood %d"
# What a rank returns; that of a rank other than 0 is left out if it is larger than 64 MiB.
BYTES = 100 << 20, 10 << 20
WELL = "ended well"


def raises(folder: str) -> None:
    raise ValueError("the labels are wrong")


def exits_with_3(folder: str) -> None:
    sys.exit(3)


def exits_with_a_sentence(folder: str) -> None:
    sys.exit("there is no data")


def exits_early(folder: str) -> None:
    sys.exit()


def vanishes_with_3(folder: str) -> None:
    os._exit(3)


def vanishes_with_0(folder: str) -> None:
    os._exit(0)


def is_killed(folder: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashes(folder: str) -> None:
    import ctypes

    ctypes.string_at(0)


def is_stopped(folder: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


_hoard: list[str] = []


def hoards(folder: str) -> None:
    """Small pieces, of which none is given back: then there is nothing left for an error's sake, either."""
    import resource

    with open("/proc/self/statm") as file:
        bytes_now = int(file.read().split()[0]) * resource.getpagesize()
    limit = bytes_now + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        _hoard.append(str(len(_hoard)))


def closes_stdout(folder: str) -> None:
    print("last words")
    sys.stdout.close()


def closes_stdout_and_raises(folder: str) -> None:
    closes_stdout(folder)
    raises(folder)


def closes_all_output_and_raises(folder: str) -> None:
    print("last words")
    os.close(1)
    os.close(2)
    raises(folder)


def floods_and_raises(folder: str) -> None:
    """As fast as it can, and on while it fails."""
    import threading

    def flood() -> None:
        number = 0
        while True:
            os.write(1, b"".join(LINE.encode() % n + b"\n" for n in range(number, number + 1000)))
            number += 1000

    threading.Thread(target=flood, daemon=True).start()
    time.sleep(2)
    raises(folder)


def leaves_a_daemon(folder: str) -> None:
    """Out of its session and its group, deaf to SIGTERM, with the rank's output open."""
    import subprocess

    note = f"{folder}/daemon"
    daemon = f"trap '' TERM HUP; echo $$ > {note}.new; mv {note}.new {note}; while :; do sleep 1; done"
    subprocess.run(["sh", "-c", f'setsid sh -c "{daemon}" &'], check=True)
    while not os.path.exists(note):
        time.sleep(0.02)


def leaves_a_daemon_and_raises(folder: str) -> None:
    leaves_a_daemon(folder)
    raises(folder)


def _once_alone(folder: str, rank: int, misdeed: str) -> None:
    """The misdeed, once the other rank has ended."""
    with open(f"{folder}/{1 - rank}") as file:
        pid = json.load(file)["pid"]
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.02)
    globals()[misdeed](folder)


class Value:
    """A value at whose pickling the rank misbehaves."""

    def __init__(self, *how: object) -> None:
        self.how = how

    def __reduce__(self) -> tuple[Callable[[], str], tuple[()]]:
        _once_alone(*self.how)  # type: ignore[arg-type]
        return str, ()


class Unreadable:
    """A value that pickles and can't be read back."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return raises, ("",)


def _parents() -> Iterator[tuple[int, str]]:
    """The processes above this one, and their names."""
    pid = os.getppid()
    while pid > 1:
        with open(f"/proc/{pid}/stat") as file:
            name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
        yield pid, name
        pid = int(rest.split()[1])


def note() -> dict[str, int]:
    """This process, and the warm pool that it was forked from; 0 for none."""
    pools = [pid for pid, name in _parents() if name == "phalanx-pool"]
    return {"pid": os.getpid(), "pool": pools[0] if pools else 0}


def train(folder: str, culprit: int, phase: str, misdeed: str, goes_on: bool) -> object:
    """`goes_on`: the misdeed ends nothing, so that the other rank need not wait for its own end."""
    rank = int(os.environ["RANK"])
    with open(f"{folder}/{rank}.new", "w") as file:
        json.dump(note(), file)
    os.rename(f"{folder}/{rank}.new", f"{folder}/{rank}")
    while not os.path.exists(f"{folder}/{1 - rank}"):
        time.sleep(0.02)
    is_culprit = rank == culprit
    if phase == "while its peer computes":
        if is_culprit:
            globals()[misdeed](folder)
        elif not goes_on:
            time.sleep(600)
    elif phase == "in return":
        return [bytes(BYTES[rank]), Value(folder, rank, misdeed)] if is_culprit else WELL
    elif phase == "in an exit handler":
        if is_culprit:
            atexit.register(_once_alone, folder, rank, misdeed)
    else:
        _collectively(folder, phase, globals()[misdeed] if is_culprit else None)
    return WELL


def _collectively(folder: str, phase: str, misdeed: Callable[[str], None] | None) -> None:
    import torch
    import torch.distributed as dist

    if phase == "while its peer joins":
        if misdeed is not None:
            misdeed(folder)
        dist.init_process_group("gloo")
    else:
        dist.init_process_group(phase.removeprefix("while its peer reduces by "))
        dist.all_reduce(torch.ones(1000))
        if misdeed is not None:
            misdeed(folder)
        dist.all_reduce(torch.ones(1000))


def ends_well(collectively: bool) -> dict[str, int]:
    """What a run after a fault does: all that the one before may have broken."""
    if not collectively:
        return note()
    import torch
    import torch.distributed as dist

    for backend in ("gloo", "phalanx"):
        dist.init_process_group(backend)
        total = torch.ones(1000)
        dist.all_reduce(total)
        dist.destroy_process_group()
    return {**note(), "sum": int(total[0])}
