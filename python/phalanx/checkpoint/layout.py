"""How checkpoints are called in their folder, which of them are found, and which go.

In a folder, `step-0000000120.pt` is a whole checkpoint: its name stands for the whole file. Everything else is found by
a manifest, which is written last and names its files with their sizes:

    step-0000000120-0001-5f0c11d24be7a903.pt.json      the manifest of
    step-0000000120-0001-5f0c11d24be7a903.pt           a whole checkpoint in a store that can't rename
    step-0000000120-0001-5f0c11d24be7a903.dist.json    the manifest of
    step-0000000120-0001-5f0c11d24be7a903.dist/        what all ranks wrote together

The numbers are the step; how often the step was saved; and the writer, of whom the first half says which attempt of
which run it was. No writer ever writes to a name that another has used.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..rank import contract

KEEP = 2
"""How many checkpoints stay, unless you say otherwise."""

ABANDONED_S = 24 * 3600.0
"""What another run began and hasn't written to for so long is nobody's any more; hosts' clocks differ by less."""

OWNER = "owner.json"
"""The file that says whose the folder is: `owner.py`."""

ATTEMPT = "attempt.json"
"""The file that says which attempt of a run has begun last: `latest_attempt.py`."""

WHOLE = "pt"
SHARDED = "dist"

_MAX_STEP = 10**10 - 1
_PLAIN = re.compile(r"step-(\d{10})\.pt")
_NAMED = re.compile(r"(step-(\d{10})-(\d{4,})-([0-9a-f]{16}))\.(pt|dist)")
_MANIFEST = re.compile(_NAMED.pattern + r"\.json")
_PART = re.compile(r"(?:step-.+|owner\.json|attempt\.json)\.part-([0-9a-f]{8})[0-9a-f]{8}")
_VERSION = 1

# What this process has written under, for one that is in no run.
_own_writers: set[str] = set()


class Entry(NamedTuple):
    """One checkpoint of a folder. A greater one is a newer one."""

    step: int
    generation: int
    """How often the step was saved before; what a name alone stands for was saved first."""
    writer: str
    kind: str
    plain: bool = False

    @property
    def data(self) -> str:
        """The name of its file, or of its folder."""
        if self.plain:
            return f"step-{self.step:010d}.pt"
        return f"step-{self.step:010d}-{self.generation:04d}-{self.writer}.{self.kind}"

    @property
    def manifest(self) -> str:
        """The name of its manifest."""
        return f"{self.data}.json"


def check_step(step: Any) -> int:
    """`step` as a number that a name can have; `ValueError` for another."""
    number = operator.index(step)
    if not 0 <= number <= _MAX_STEP:
        raise ValueError(f"step is {number}, but has to be 0 to {_MAX_STEP}")
    return number


def attempts() -> list[str]:
    """The attempts of this process's run up to its own, which is the last; none outside a run."""
    run = os.environ.get(contract.ENV_RUN_ID)
    if contract.ENV_RANK_DIR not in os.environ or run is None:
        return []
    numbers = range(int(os.environ.get(contract.ENV_RESTART_COUNT, "0")) + 1)
    return [hashlib.sha256(f"{run}/{attempt}".encode()).hexdigest()[:8] for attempt in numbers]


def writer() -> str:
    """A name that no other writer has; its first half says which attempt of which run it is."""
    run = attempts()
    name = (run or ["0" * 8])[-1] + os.urandom(4).hex()
    if not run:
        _own_writers.add(name)
    return name


def is_own_writer(name: str) -> bool:
    """Whether this process, or a rank of this run, is what wrote under this name."""
    return name in _own_writers or name[:8] in attempts()


def entries(names: Iterable[str], kind: str) -> list[Entry]:
    """The checkpoints of a kind among the names of a folder, the newest first."""
    found = []
    for name in names:
        plain = _PLAIN.fullmatch(name) if kind == WHOLE else None
        named = _MANIFEST.fullmatch(name)
        if plain is not None:
            found.append(Entry(int(plain[1]), 0, "", WHOLE, plain=True))
        elif named is not None and named[5] == kind:
            found.append(Entry(int(named[2]), int(named[3]), named[4], kind))
    return sorted(found, reverse=True)


def next_entry(names: Iterable[str], step: int, kind: str) -> Entry:
    """What the next checkpoint of `step` is called."""
    before = [entry.generation for entry in entries(names, kind) if entry.step == step]
    return Entry(step, max(before, default=0) + 1, writer(), kind)


def superseded(found: Iterable[Entry], saved: Entry, keep: int) -> list[Entry]:
    """What goes when `saved` is there: all but the `keep` highest steps and itself, and older ones of the same step."""
    newest: dict[int, Entry] = {}
    all_found = sorted({*found, saved})
    for entry in all_found:
        newest[entry.step] = entry
    newest[saved.step] = saved
    stay = {newest[step] for step in sorted(newest)[-max(keep, 1) :]} | {saved}
    return [entry for entry in all_found if entry not in stay]


def unended(names: Iterable[str]) -> dict[str, str]:
    """What was begun and isn't ended, by name, and of each which attempt of which run began it."""
    names = list(names)
    ended = {entry.data for kind in (WHOLE, SHARDED) for entry in entries(names, kind)}
    found = {}
    for name in names:
        data, part = _NAMED.fullmatch(name), _PART.fullmatch(name)
        if part is not None:
            found[name] = part[1]
        elif data is not None and name not in ended:
            found[name] = data[4][:8]
    return found


def manifest_of(entry: Entry, files: Mapping[str, int], **more: Any) -> bytes:
    """The manifest of a checkpoint whose files have these sizes."""
    told = {
        "version": _VERSION,
        "step": entry.step,
        "kind": "whole" if entry.kind == WHOLE else "sharded",
        "saved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **more,
        "files": dict(files),
    }
    return (json.dumps(told, indent=1) + "\n").encode()


def files_of(manifest: bytes) -> dict[str, int] | None:
    """The files that a manifest names, with their sizes; None where its writer was killed.

    Raises `ValueError` for a manifest of another version.
    """
    try:
        told = json.loads(manifest)
    except ValueError:
        return None
    if told["version"] != _VERSION:
        raise ValueError(
            f"this checkpoint's manifest has version {told['version']}, but this Phalanx reads version {_VERSION}"
        )
    return {str(name): int(size) for name, size in told["files"].items()}
