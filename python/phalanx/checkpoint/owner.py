"""Whose the checkpoints of a folder are, where the run gave no name: `owner.json`, which is written once.

CHECKPOINT-8 (one-owner): a folder that has its name from what is run belongs to who ran that first. A run of another
owner is refused before it reads, writes or removes anything there.
CHECKPOINT-9 (taken-once): of runs that begin at the same time one takes the folder. Where a store can't make a file
exclusively, the others learn it at their next call.
CHECKPOINT-10 (adopted): checkpoints without an owner belong to the first who comes, who is told so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from ..rank import contract
from . import layout

if TYPE_CHECKING:
    from ..plumbing.store import Store

FILE = layout.OWNER

# A file of this size is written within that; later its writer is taken for killed.
_WRITTEN_WITHIN_S = 5.0
_VERSION = 1

Owner = dict[str, Any]


def own() -> Owner | None:
    """The owner of this rank's run; None where whoever has the run's name shares its checkpoints."""
    told = os.environ.get(contract.ENV_CHECKPOINT_OWNER)
    return json.loads(told) if told else None


def check(store: Store, owner: Owner | None, *, takes: bool) -> None:
    """Raises `RuntimeError` where the folder is another's; None is nobody, who shares it.

    A folder that nobody has is taken if the call `takes` it, or if checkpoints are there already.
    """
    if owner is None:
        return
    found = _read(store, removes=True)
    if found is None:
        names = store.sizes()
        has = any(layout.entries(names, kind) for kind in (layout.WHOLE, layout.SHARDED))
        if not (takes or has):
            return
        try:
            found = _take(store, owner, adopts=has)
        except OSError:
            if takes:
                raise
            return  # who may only read takes nothing from others
    _refuse_another(store, found, owner)


def check_early(folder: str, owner: Owner) -> None:
    """The same at the run's caller, who sees the folder or doesn't; nothing is written."""
    from ..plumbing.store import open_store

    store = open_store(folder)
    try:
        found = _read(store)
    except OSError:  # the ranks may have another user, or other folders
        return
    _refuse_another(store, found or owner, owner)


def _refuse_another(store: Store, found: Owner, owner: Owner) -> None:
    if found != owner:
        folder = store.path("").rstrip("/")
        name = folder.rpartition("/")[2]
        raise RuntimeError(
            f"the checkpoints in {folder} belong to {said(found)}, but this run is {said(owner)}; give it "
            f"its own checkpoint_name, or checkpoint_name={name!r} to share them"
        )


def said(owner: Owner) -> str:
    """An owner in words."""
    kind, place, name = owner["kind"], owner["place"], owner["name"]
    where = "an interactive session" if kind == "session" else f"the {kind} {place}"
    line = f" at line {owner['line']}" if owner["line"] else ""
    of = f"`{name}`{line} of " if name else ""
    return f"{of}{where}, run by {owner['user']}"


def _take(store: Store, owner: Owner, *, adopts: bool) -> Owner:
    """Makes the folder this owner's; returns whose it is then."""
    run = os.environ.get(contract.ENV_RUN_ID)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    told = {"version": _VERSION, "owner": owner, "run": run, "taken_at": at}
    taken = store.create_new(FILE, (json.dumps(told, indent=1) + "\n").encode())
    if taken and adopts and sys.stderr is not None:
        print(
            f"phalanx: the checkpoints in {store.path('')} had no owner; from now on they belong to {said(owner)}",
            file=sys.stderr,
        )
    # Also after it was written: a store without exclusive files has that of whoever wrote last.
    return _read(store) or owner


def _read(store: Store, *, removes: bool = False) -> Owner | None:
    """Whose the folder is; None if nobody's. What a killed writer left of the file can be removed."""
    until = time.monotonic() + _WRITTEN_WITHIN_S
    while True:
        try:
            with store.open(FILE) as file:
                told = json.loads(file.read())
        except FileNotFoundError:
            return None
        except ValueError:
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            if removes:
                store.remove(FILE)
            return None
        version = told.get("version") if isinstance(told, dict) else None
        if version != _VERSION:
            raise ValueError(
                f"{store.path(FILE)} has version {version}, but this Phalanx reads version {_VERSION}"
            )
        owner: Owner = told["owner"]
        return owner
