"""Checkpoints that all ranks write together, each its own part, by `torch.distributed.checkpoint`.

Every call here is a collective one: all ranks of the group make it, in the same order.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..rank import contract, reporting
from . import background, latest_attempt, layout, owner, pickles, place, whole

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ..plumbing.store import Store


def save_sharded(
    state: dict[str, Any],
    step: int,
    *,
    directory: str | os.PathLike[str] | None = None,
    name: str | None = None,
    keep: int = layout.KEEP,
    process_group: ProcessGroup | None = None,
) -> str:
    """Writes a state dict as the checkpoint of `step`, every rank its own part; returns its path.

    `state` is what `torch.distributed.checkpoint.save` takes: shards (DTensor) of FSDP and its like, tensors that all
    ranks hold alike, other values. All ranks of the group call this. They need a folder in common, or a URI.

    Raises in every rank where one of them can't write; older checkpoints are then as they were.
    """
    step = layout.check_step(step)
    background.finish()
    place.check_shared(directory)
    store, ranks = place.store_of(directory, name), _Ranks(process_group)
    whose = place.owner_of(directory, name)
    entry = ranks.agree(lambda: _next(store, whose, step))
    _save(state, store, entry, ranks)
    return str(ranks.agree(lambda: _publish(store, entry, keep, ranks.size)))


def save_sharded_async(
    state: dict[str, Any],
    step: int,
    *,
    directory: str | os.PathLike[str] | None = None,
    name: str | None = None,
    keep: int = layout.KEEP,
    process_group: ProcessGroup | None = None,
) -> background.Saving:
    """As `save_sharded`, but returns as soon as `state` is in memory once more; threads write it.

    The ranks agree by a process group of their own, so that the training's collectives aren't disturbed. It is gloo's,
    or the `phalanx` backend's in a run that encrypts. Wait for `result()` before `destroy_process_group`.
    """
    step = layout.check_step(step)
    background.finish()
    place.check_shared(directory)
    store, ranks = place.store_of(directory, name), _Ranks(process_group).apart()
    whose = place.owner_of(directory, name)
    entry = ranks.agree(lambda: _next(store, whose, step))
    copy = _copy(state)

    def write() -> str:
        _save(copy, store, entry, ranks)
        return str(ranks.agree(lambda: _publish(store, entry, keep, ranks.size)))

    return background.begin(step, write)


def load_sharded(
    state: dict[str, Any],
    *,
    directory: str | os.PathLike[str] | None = None,
    name: str | None = None,
    process_group: ProcessGroup | None = None,
    trusted: bool = False,
) -> int | None:
    """Fills `state` from the sharded checkpoint with the highest step; returns the step, or None if there is none.

    `state` has the keys and the tensors to fill, as for `torch.distributed.checkpoint.load`. The world may have another
    size than the one that saved. All ranks of the group call this, and resume from the same step. Values that are
    pickles are read as `latest` reads them; `trusted` says the same there.
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    from .torch_storage import Planner, Reader

    background.finish()
    place.check_shared(directory)
    store, ranks = place.store_of(directory, name), _Ranks(process_group)
    whose = place.owner_of(directory, name)
    found = ranks.agree(lambda: _newest(store, whose, trusted))
    if found is None:
        return None
    entry, whole_pickles = found
    with _quiet():
        load(
            state,
            storage_reader=Reader(store, entry.data, whole_pickles=whole_pickles),
            planner=Planner(store.path(entry.data), whole_pickles=whole_pickles),
            process_group=ranks.group,
            no_dist=not ranks.are_group,
        )
    return int(entry.step)


def _next(store: Store, whose: owner.Owner | None, step: int) -> layout.Entry:
    owner.check(store, whose, takes=True)
    return layout.next_entry(store.sizes(), step, layout.SHARDED)


def _newest(store: Store, whose: owner.Owner | None, trusted: bool) -> tuple[layout.Entry, bool] | None:
    """The newest checkpoint, and whether its pickles may be read."""
    owner.check(store, whose, takes=False)
    latest_attempt.begin(store)
    sizes = store.sizes()
    for entry in layout.entries(sizes, layout.SHARDED):
        if whole.is_whole(store, entry, sizes):
            return entry, pickles.may_run(store, entry, trusted=trusted)
    if layout.entries(sizes, layout.WHOLE):
        raise RuntimeError(f"the checkpoints in {store.path('')} are not sharded; load them with `latest`")
    return None


def _save(state: dict[str, Any], store: Store, entry: layout.Entry, ranks: _Ranks) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    from .torch_storage import Writer

    with _quiet():
        save(
            state,
            storage_writer=Writer(store, entry.data),
            process_group=ranks.group,
            no_dist=not ranks.are_group,
        )


def _publish(store: Store, entry: layout.Entry, keep: int, ranks: int) -> str:
    """In one rank, when all have written their parts."""
    from .torch_storage import files_of

    store.settle(entry.data)
    files, there = files_of(store, entry.data), store.sizes(entry.data)
    missing = sorted(files - there.keys())
    if missing:
        raise RuntimeError(
            f"{', '.join(missing)} of step {entry.step} was written by another rank and isn't in "
            f"{store.path(entry.data)} here; name a folder that all hosts share"
        )
    whole.publish(store, entry, {name: there[name] for name in files}, ranks=ranks)
    reporting.saved(entry.step)
    whole.clean(store, entry, keep)
    return store.path(entry.data)


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    """`state` once more, in the host's memory."""
    from torch.distributed.checkpoint.staging import BlockingAsyncStager
    from torch.distributed.checkpoint.stateful import Stateful

    told = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}
    return dict(BlockingAsyncStager().stage(told))


class _Ranks:
    """The ranks of a group, or this process alone where there is none."""

    def __init__(self, group: ProcessGroup | None) -> None:
        import torch.distributed as dist

        self.group = group
        self.are_group = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size(group) if self.are_group else 1

    def apart(self) -> _Ranks:
        """The same ranks, with a process group that nobody else uses."""
        import torch.distributed as dist

        if self.are_group:
            default = dist.group.WORLD if self.group is None else self.group
            key = id(default)
            if key not in _groups or _groups[key][0] is not default:
                members = dist.get_process_group_ranks(default)
                backend = "phalanx" if os.environ.get(contract.ENV_ENCRYPTION) == "on" else "gloo"
                group = dist.new_group(members, backend=backend, use_local_synchronization=True)
                _groups[key] = default, group
            self.group = _groups[key][1]
        return self

    def agree(self, decide: Callable[[], Any]) -> Any:
        """What the first rank decides, in all; what it raises, in all."""
        if not self.are_group:
            return decide()
        import torch.distributed as dist

        first = dist.get_rank(self.group) == 0
        told: list[Any] = [None, None]
        problem: BaseException | None = None
        if first:
            try:
                told[0] = decide()
            except Exception as error:
                problem = error
                told[1] = f"{type(error).__name__}: {error}"
        source = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.broadcast_object_list(told, src=source, group=self.group)
        if problem is not None:
            raise problem
        if told[1] is not None:
            raise RuntimeError(f"the first rank of the group can't save or load a checkpoint: {told[1]}")
        return told[0]


_groups: dict[int, tuple[Any, ProcessGroup]] = {}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A lone process is no reason to warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
