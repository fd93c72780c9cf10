"""A checkpoint before a host goes: what training code saves when it hears of that, and how it leaves."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from ..rank import contract
from ..rank.notices import Preempted, preempted
from . import background, layout
from .sharded import save_sharded
from .whole import save


def save_if_preempted(
    state: Any | Callable[[], Any],
    step: int,
    *,
    sharded: bool = False,
    directory: str | os.PathLike[str] | None = None,
    name: str | None = None,
    keep: int = layout.KEEP,
) -> None:
    """Where a host of the run is to go (`phalanx.preempted`), saves `state` as the checkpoint of `step` and raises
    `phalanx.Preempted`; else returns at once.

    All ranks call it at the same steps, before they begin `step`. `state` is that after the steps before, or a function
    that returns it, which is called only then, in each rank that saves. Rank 0 saves by `save`, or with `sharded` all
    ranks by `save_sharded`; the other arguments are theirs.

    >>> for step in range(first, steps):
    ...     checkpoint.save_if_preempted(lambda: {"model": model.state_dict()}, step)
    ...     train(step)

    Raises as `preempted`, and as what saves: the run fails then.
    """
    notice = preempted(step)
    if notice is None:
        return
    background.finish()  # what a rank saves beside the training ends with it
    if sharded:
        save_sharded(_made(state), step, directory=directory, name=name, keep=keep)
    elif int(os.environ.get(contract.ENV_RANK, "0")) == 0:
        save(_made(state), step, directory=directory, name=name, keep=keep)
    raise Preempted(step, notice)


def _made(state: Any) -> Any:
    # Modules can be called, too.
    return state() if isinstance(state, FunctionType | MethodType | partial) else state
