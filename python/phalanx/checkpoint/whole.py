"""Checkpoints that one rank writes by itself: what all ranks hold alike."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from ..rank import contract, reporting
from . import background, latest_attempt, layout, owner, pickles, place

if TYPE_CHECKING:
    from ..plumbing.store import Store

# How often the newest checkpoint is looked for that somebody removes before it is read.
_TRIES = 5

_told = False


def save(
    state: Any,
    step: int,
    *,
    directory: str | os.PathLike[str] | None = None,
    name: str | None = None,
    keep: int = layout.KEEP,
) -> str:
    """Writes `state` by `torch.save` as the checkpoint of `step`; returns its path, or its URI.

    Ranks that hold the same state save it once: call this in rank 0. The `keep` highest steps stay, and what was just
    saved in any case. `directory` is a folder or a URI in the place of the job's own, and `name` the name of a run in
    the place of this one's. Where ranks on other hosts won't find the checkpoints, the rank says so on stderr, once.

    Raises `OSError` where it can't be written; older checkpoints are then as they were. Raises `RuntimeError` where the
    folder is another run's, see CHECKPOINT-8, and in a rank of an attempt that is over, see CHECKPOINT-12.
    """
    import torch

    step = layout.check_step(step)
    background.finish()
    place.warn_not_shared(directory)
    store = _to_write(directory, name)
    return _write(store, step, keep, lambda file: torch.save(state, file))


def save_async(
    state: Any,
    step: int,
    *,
    directory: str | os.PathLike[str] | None = None,
    name: str | None = None,
    keep: int = layout.KEEP,
) -> background.Saving:
    """As `save`, but returns as soon as `state` is in memory once more; a thread writes it.

    The training may go on and change `state`. What is returned has `done` and `result()`, which is the path. One
    checkpoint at a time: the next call waits for this one, and raises what it failed of.
    """
    import torch

    step = layout.check_step(step)
    background.finish()
    place.warn_not_shared(directory)
    store = _to_write(directory, name)
    copy = io.BytesIO()
    torch.save(state, copy)
    return background.begin(
        step, lambda: _write(store, step, keep, lambda file: file.write(copy.getbuffer()))
    )


def latest(
    *,
    directory: str | os.PathLike[str] | None = None,
    name: str | None = None,
    map_location: Any = "cpu",
    trusted: bool = False,
) -> tuple[int, Any] | None:
    """The whole checkpoint with the highest step: its step, and what was saved; None if there is none.

    Tensors and plain values are read whoever saved them. Anything else is pickle, which runs code of whoever saved it:
    it is read where this run saved it, where the file is this user's, and where it is `trusted`. A file at a URI has no
    user.

    Raises `pickle.UnpicklingError` for the pickle of somebody else, and `RuntimeError` where the job's hosts have no
    folder in common, see CHECKPOINT-2, where the folder is another run's, see CHECKPOINT-8, and where there are only
    sharded checkpoints.
    """
    background.finish()
    place.check_shared(directory)
    store = place.store_of(directory, name)
    owner.check(store, place.owner_of(directory, name), takes=False)
    latest_attempt.begin(store)
    looked_empty = False
    for _ in range(_TRIES):
        # Who saves meanwhile removes older ones; a newer one is there then. A list of a folder may have neither.
        with contextlib.suppress(FileNotFoundError):
            found = _latest(store, map_location=map_location, trusted=trusted)
            if found is not None or looked_empty:
                return found
            looked_empty = True
    return _latest(store, map_location=map_location, trusted=trusted)


def _latest(store: Store, *, map_location: Any, trusted: bool) -> tuple[int, Any] | None:
    sizes = store.sizes()
    for entry in layout.entries(sizes, layout.WHOLE):
        if entry.plain or is_whole(store, entry, sizes):
            return entry.step, pickles.load(store, entry, map_location=map_location, trusted=trusted)
    if layout.entries(sizes, layout.SHARDED):
        raise RuntimeError(
            f"the checkpoints in {store.path('')} are sharded; load them with `load_sharded` on all ranks"
        )
    return None


def _to_write(directory: str | os.PathLike[str] | None, name: str | None) -> Store:
    store = place.store_of(directory, name)
    owner.check(store, place.owner_of(directory, name), takes=True)
    return store


def _write(store: Store, step: int, keep: int, write: Callable[[BinaryIO], Any]) -> str:
    sizes = store.sizes()
    if store.publishes_files:
        entry = layout.Entry(step, 0, "", layout.WHOLE, plain=True)
        with store.create(entry.data) as file, _os_errors():
            write(file)
            pickles.sign(file)
            latest_attempt.check(store)
    else:
        entry = layout.next_entry(sizes, step, layout.WHOLE)
        with store.create(entry.data) as file, _os_errors():
            counted = _Counted(file)
            write(counted)  # type: ignore[arg-type]
        publish(store, entry, {entry.data: counted.bytes})
    reporting.saved(step)
    clean(store, entry, keep)
    return store.path(entry.data)


def publish(store: Store, entry: layout.Entry, files: dict[str, int], **more: Any) -> None:
    """Writes the manifest of a checkpoint: from now on it is found."""
    latest_attempt.check(store)
    run = os.environ.get(contract.ENV_RUN_ID)
    store.publish(entry.manifest, layout.manifest_of(entry, files, run=run, **more))


def is_whole(store: Store, entry: layout.Entry, sizes: dict[str, int]) -> bool:
    """Whether a checkpoint has a whole manifest, and all that this names."""
    try:
        with store.open(entry.manifest) as file:
            files = layout.files_of(file.read())
    except FileNotFoundError:  # another rank was quicker
        return False
    there = sizes if entry.kind == layout.WHOLE else store.sizes(entry.data)
    return files is not None and all(there.get(name) == size for name, size in files.items())


def clean(store: Store, saved: layout.Entry, keep: int) -> None:
    """Removes what `saved` supersedes, and what nobody will end any more. That this fails costs space, no more."""
    global _told
    sizes = store.sizes()
    found = layout.entries(sizes, saved.kind)
    higher = [entry.step for entry in found if entry.step > saved.step]
    if higher and not _told and sys.stderr is not None:
        _told = True
        print(
            f"phalanx: step {saved.step} is saved, but another run has left step {max(higher)} there, which "
            f"a resumed run would load; give this run its own checkpoint_name, or remove what is in {store.path('')}",
            file=sys.stderr,
        )
    for entry in layout.superseded(found, saved, keep):
        with contextlib.suppress(OSError):
            if not entry.plain:
                store.remove(entry.manifest)
            store.remove(entry.data)
    attempts = layout.attempts()
    if not attempts:  # nobody knows who is who
        return
    for name, attempt in layout.unended(sizes).items():
        with contextlib.suppress(OSError):
            if attempt in attempts[:-1] or (attempt != attempts[-1] and _is_abandoned(store, name)):
                store.remove(name)


def _is_abandoned(store: Store, name: str) -> bool:
    """Whether no other run can still be writing this, see CHECKPOINT-5."""
    written_at = store.written_at(name)
    return written_at is not None and time.time() - written_at > layout.ABANDONED_S


class _Counted:
    """A file to write that counts: some stores tell the size of a file only later."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes = 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        size = memoryview(data).nbytes
        self.bytes += size
        return size

    def flush(self) -> None:
        self._file.flush()


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:
        # What torch's writer says when it finds, at its end, that the file refused to grow.
        if isinstance(problem.__context__, OSError):
            raise problem.__context__ from None
        raise
