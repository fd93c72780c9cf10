"""What stands between exec and Python: a shell script that sets variables, such as an environment's own `bin/python`,
and the interpreter, which may set the locale.

LAUNCHER-1: a forked rank has the variables that its launcher would have given it. Where that can't be known, because
the launcher began with another value than the pool's, the rank starts anew through the launcher.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The pool's own.
_OWN = ("PHALANX_POOL", "PHALANX_NOTES_FD", "OPENBLAS_NUM_THREADS")


class Launcher:
    """What the launcher of this process did to its environment; made before anything changes that."""

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
        """`env` as the launcher would leave it; None where that can't be known."""
        after = dict(env)
        for name, (before, now) in self._changed.items():
            if env.get(name) != before:
                return None
            after.pop(name, None)
            if now is not None:
                after[name] = now
        return after
