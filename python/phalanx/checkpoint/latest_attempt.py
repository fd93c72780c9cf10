"""The latest attempt of a run that has begun from the checkpoints of a folder: `attempt.json`.

CHECKPOINT-12 (no-late-save): once a rank of an attempt has looked for the newest checkpoint, earlier attempts of its
run save nothing there any more. A rank whose node has lost the hub runs on for some seconds; what it saved then would
take the place of steps that the run takes anew.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from ..rank import contract
from . import layout

if TYPE_CHECKING:
    from ..plumbing.store import Store

FILE = layout.ATTEMPT

_VERSION = 1


def begin(store: Store) -> None:
    """This rank's attempt begins from what is there now. Where the folder can't be written nothing is noted."""
    run, own = os.environ.get(contract.ENV_RUN_ID), _own()
    if own > 0 and _begun(store) < own:
        told = {"version": _VERSION, "run": run, "attempt": own}
        with contextlib.suppress(OSError):
            store.publish(FILE, (json.dumps(told) + "\n").encode())


def check(store: Store) -> None:
    """Raises `RuntimeError` where a later attempt of this rank's run has begun."""
    own, begun = _own(), _begun(store)
    if begun > own >= 0:
        raise RuntimeError(
            f"nothing is saved: this rank is of attempt {own + 1} of its run, and attempt {begun + 1} has begun "
            f"from the checkpoints in {store.path('')}"
        )


def _own() -> int:
    """The number of this rank's attempt; -1 outside a run."""
    return len(layout.attempts()) - 1


def _begun(store: Store) -> int:
    """The latest attempt of this rank's run that is noted; -1 if there is none."""
    try:
        with store.open(FILE) as file:
            told = json.loads(file.read())
    except (FileNotFoundError, ValueError):  # a store that can't rename shows what is being written
        return -1
    is_own = told.get("version") == _VERSION and told.get("run") == os.environ.get(contract.ENV_RUN_ID)
    return int(told["attempt"]) if is_own else -1
