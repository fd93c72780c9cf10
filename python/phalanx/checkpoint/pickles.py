"""What of a checkpoint is unpickled. A pickle runs code of whoever wrote it.

CHECKPOINT-11 (no-strangers-code): of a checkpoint that neither this run nor this process's user wrote, tensors and
plain values are read, and nothing else, unless the caller trusts it. Who wrote a file the file system says, or the file
itself: it carries its writer's name, which anybody could forge who may write there. It prevents mistakes, and is no
boundary.
"""

from __future__ import annotations

import os
import pickle
import struct
from typing import TYPE_CHECKING, Any, BinaryIO

from . import layout

if TYPE_CHECKING:
    from ..plumbing.store import Store

# A file of `torch.save` is a zip archive, which ends in a comment and its length; readers pass over it.
_MARK = b"phalanx:"
_MARK_BYTES = len(_MARK) + 16


def sign(file: BinaryIO) -> None:
    """Leaves its writer's name at the end of what `torch.save` has written."""
    comment = _MARK + layout.writer().encode()
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", len(comment)) + comment)


def may_run(store: Store, entry: layout.Entry, *, trusted: bool) -> bool:
    """Whether a whole pickle may be read: it is trusted, or this run's, or this process's user's."""
    writer = _signer(store, entry) if entry.plain else entry.writer
    return trusted or layout.is_own_writer(writer) or store.is_users(entry.data)


def load(store: Store, entry: layout.Entry, *, map_location: Any, trusted: bool) -> Any:
    """What was saved. Raises `pickle.UnpicklingError` as CHECKPOINT-11 says."""
    import torch

    try:
        with store.open(entry.data) as file:
            return torch.load(file, map_location=map_location, weights_only=True)
    except Exception as problem:
        if not may_run(store, entry, trusted=trusted):
            if isinstance(problem, pickle.UnpicklingError):
                raise refused(store.path(entry.data), "latest") from problem
            raise
    with store.open(entry.data) as file:
        return torch.load(file, map_location=map_location, weights_only=False)


def check_plain(value: BinaryIO, path: str) -> None:
    """Raises `pickle.UnpicklingError` where this, which `torch.save` wrote, is more than tensors and plain values."""
    import torch

    try:
        torch.load(value, weights_only=True)
    except pickle.UnpicklingError as problem:
        raise refused(path, "load_sharded") from problem
    value.seek(0)


def refused(path: str, call: str) -> pickle.UnpicklingError:
    """What to raise for a checkpoint that only its writer's code can read."""
    return pickle.UnpicklingError(
        f"{path} has more than tensors and plain values, and neither this run nor this user wrote it, so it "
        f"isn't unpickled; if you trust whoever wrote it, call {call}(trusted=True)"
    )


def _signer(store: Store, entry: layout.Entry) -> str:
    with store.open(entry.data) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _MARK_BYTES, 0))
        comment = file.read(_MARK_BYTES)
    return comment.removeprefix(_MARK).decode("ascii", "replace") if comment.startswith(_MARK) else ""
