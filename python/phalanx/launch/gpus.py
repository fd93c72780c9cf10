"""Which GPUs this host has, and who has them: for runs without Spark, which else would say.

LAUNCH-3 (untouched): nothing here loads CUDA or torch, so ranks may be forked from this process.
LAUNCH-4 (one-run): a GPU that a run has leased is no other run's, in whatever shell that is. The lease is a name in the
abstract namespace of Unix sockets (unix(7)), which the kernel gives back when the process ends, whatever ends it. Who
is in another network namespace, as another container is, doesn't see it; nor do runs of `TorchDistributor`.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import weakref
from collections.abc import Sequence

from ..rank import contract

logger = logging.getLogger("phalanx")

# A driver that nobody uses takes seconds to answer.
_ANSWER_S = 30.0
_CARD = re.compile(r"GPU \d+: .*\(UUID: (\S+)\)")
_MIG = re.compile(r"\s+MIG .*\(UUID: (\S+)\)")
_UUID = re.compile(r"(GPU|MIG)-[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}")
_NODE = re.compile(r"nvidia\d+")


def gpus_here() -> list[str]:
    """The GPUs that a run may have, as `CUDA_VISIBLE_DEVICES` names them: the entries of that variable, or where it
    isn't set what `nvidia-smi` lists, by UUID.

    Raises `RuntimeError` where `nvidia-smi` doesn't answer.
    """
    visible = os.environ.get(contract.ENV_VISIBLE_GPUS)
    return listed() if visible is None else entries(visible)


def entries(visible: str) -> list[str]:
    """The GPUs that a value of `CUDA_VISIBLE_DEVICES` names. As CUDA reads it, a number that is none ends the list."""
    found: list[str] = []
    for entry in map(str.strip, visible.split(",")):
        if not entry or entry.startswith("-"):
            break
        found.append(entry)
    return found


def listed() -> list[str]:
    """All GPUs of this host, by UUID: of one that is divided by MIG its parts.

    Where there is no `nvidia-smi`, as in some containers, they are the numbers of the device files.

    Raises `RuntimeError` where `nvidia-smi` doesn't answer.
    """
    try:
        told = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except FileNotFoundError:
        return [str(number) for number in range(sum(map(bool, map(_NODE.fullmatch, os.listdir("/dev")))))]
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise RuntimeError(
            f"nvidia-smi -L can't list the GPUs of this host: {problem}; use_gpu=False (--no-gpu) trains on the CPU"
        ) from problem
    gpus = of_listing(told.stdout)
    if not gpus:  # a host without a card, or one whose driver is broken
        said = (told.stdout + told.stderr).strip() or f"exit code {told.returncode}"
        logger.warning(f"nvidia-smi -L lists no GPU, and says: {said}")
    return gpus


def of_listing(text: str) -> list[str]:
    """The UUIDs in what `nvidia-smi -L` prints: a card's, or in its place those of its MIG instances."""
    cards: list[list[str]] = []
    for line in text.splitlines():
        if card := _CARD.match(line):
            cards.append([card[1]])
        elif (part := _MIG.match(line)) and cards:
            cards[-1].append(part[1])
    return [uuid for card, *parts in cards for uuid in parts or [card]]


class GpuLease:
    """GPUs that a run has to itself until `release`: `count` of these `gpus`, the first that no other run has.

    Raises `RuntimeError` where too few are free.
    """

    def __init__(self, gpus: Sequence[str], count: int) -> None:
        self.gpus: list[str] = []
        """What its ranks have as `CUDA_VISIBLE_DEVICES`."""
        self._held: list[socket.socket] = []
        _leases.add(self)
        # A driver that nobody uses takes a second to list them.
        known = gpus if all(map(_UUID.fullmatch, gpus)) else listed()
        used = 0
        for gpu in dict.fromkeys(gpus):
            if len(self.gpus) == count:
                break
            held = _taken(_known_as(gpu, known))
            if held is None:
                used += 1
            else:
                self._held.append(held)
                self.gpus.append(gpu)
        if len(self.gpus) < count:
            self.release()
            theirs = f", of which {used} are in use by other runs" if used else ""
            raise RuntimeError(
                f"the run needs {_count(count)}; this host has {_count(len(gpus))}{theirs}. Without GPUs, "
                "use_gpu=False (--no-gpu) trains on the CPU."
            )

    def release(self) -> None:
        """Gives the GPUs back; again is harmless."""
        held, self._held = self._held, []
        for name in held:
            name.close()


_leases: weakref.WeakSet[GpuLease] = weakref.WeakSet()


def _release_in_child() -> None:
    """A child that is forked, and goes on after its parent, would keep the names."""
    for lease in list(_leases):
        lease.release()


os.register_at_fork(after_in_child=_release_in_child)


def _count(gpus: int) -> str:
    return f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'}"


def _known_as(gpu: str, known: Sequence[str]) -> str:
    """One name for a GPU, by whatever name the user has it: a number, a UUID, or how a UUID begins."""
    if gpu.isdigit():
        return known[int(gpu)] if int(gpu) < len(known) else gpu
    return next((uuid for uuid in known if uuid.startswith(gpu)), gpu)


def _taken(gpu: str) -> socket.socket | None:
    """The name of a GPU, held; None if another run has it."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0phalanx-gpu-{gpu}")
    except OSError:
        name.close()
        return None
    return name
