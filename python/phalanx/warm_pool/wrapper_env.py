"""The environment of a *wrapper*: what runs between exec and Python. It can be a shell script that sets variables, such
as an environment's own `bin/python`, or the interpreter itself, which may set the locale.

POOL-9 (same-variables): a forked rank has the variables that its wrapper would have given it. Sometimes that can't
be known, because the wrapper began with another value than the pool's. Then the rank starts anew, through the wrapper.
"""

from __future__ import annotations

import os

from ..rank import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The pool's own.
_OWN = (contract.ENV_POOL, contract.ENV_NOTES_FD, "OPENBLAS_NUM_THREADS", "JE_ARROW_MALLOC_CONF")


class Wrapper:
    """What the wrapper of this process did to its environment; made before anything changes that."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """`given`: the variables that the guard, this process's parent, added to its own. Raises `OSError`."""
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            pairs = [pair.partition(b"=") for pair in file.read().split(b"\0") if pair]
        before = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs} | dict(given)
        self._changed = {
            name: (before.get(name), os.environ.get(name))
            for name in {*before, *os.environ}
            if name not in _OWN and before.get(name) != os.environ.get(name)
        }

    def applied(self, env: Mapping[str, str]) -> dict[str, str] | None:
        """`env` as the wrapper would leave it; None where that can't be known."""
        after = dict(env)
        for name, (before, now) in self._changed.items():
            if env.get(name) != before:
                return None
            after.pop(name, None)
            if now is not None:
                after[name] = now
        return after
