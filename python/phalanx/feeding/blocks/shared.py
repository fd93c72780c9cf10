"""Fetched blocks, once for all ranks below one folder: the ranks of an executor, and their worker processes.

Whoever has fetched a block links it into the folder. The others map that file, so they share its memory, too.

FEED-40 (whole): a name in the folder is that of a block whose bytes have been compared with their checksum.
FEED-41 (bounded): names of at most `SHARED_BYTES` are kept, or one. Who links another one removes the oldest; what a
rank has mapped stays its own.
FEED-42 (never-stuck): of the ranks one fetches a block. Where that takes longer than `TURN_S`, or where the folder has
gone or knows no links or locks, each fetches for itself. A lock goes with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .index import Index

SHARED_BYTES = 1 << 30
# Longer than a fetch may take that fails in the end: a host that can't be reached, one that is silent, another try.
TURN_S = 60.0
# How many blocks can be fetched at the same time.
_TURNS = 64
_BLOCK, _TURN = "block-", "turn-"


class SharedBlocks:
    """The blocks of an index that are in `folder`, where all ranks put them; in none, without a folder."""

    def __init__(self, index: Index, folder: str | None) -> None:
        self._index = index
        self._folder = folder
        self._busy_since: dict[int, float] = {}

    def found(self, number: int) -> mmap.mmap | None:
        """A block, if it is there."""
        size = self._index.blocks[number].bytes
        if self._folder is None:
            return None
        try:
            with open(self._path(number), "rb") as file:
                return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # it isn't there, or is shorter than it was
            return None

    @contextlib.contextmanager
    def turn(self, number: int) -> Iterator[bool]:
        """Whether the caller is to fetch a block now; if not, somebody else does."""
        lock = self._lock(number)
        if lock is None:
            since = self._busy_since.setdefault(number, time.monotonic())
            yield time.monotonic() > since + TURN_S
            return
        try:
            self._busy_since.pop(number, None)
            yield True
        finally:
            if lock >= 0:
                os.close(lock)

    def keep(self, number: int, file: str) -> None:
        """Has the others find a block that was fetched into a file, and was compared. The file's own name may go."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            os.link(file, self._path(number))
            self._make_room(newest=self._path(number))

    def _path(self, number: int) -> str:
        block = self._index.blocks[number]
        origin = [self._index.hosts[block.file], self._index.files[block.file], *map(str, block)]
        name = hashlib.blake2b("\0".join(origin).encode(), digest_size=16).hexdigest()
        return os.path.join(self._folder or "", _BLOCK + name)

    def _lock(self, number: int) -> int | None:
        """A lock's descriptor; -1 where nothing can be locked, and None where another process has it."""
        if self._folder is None:
            return -1
        lock = -1
        try:
            path = os.path.join(self._folder, f"{_TURN}{number % _TURNS}")
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError as problem:
            if lock >= 0:
                os.close(lock)
            return None if isinstance(problem, BlockingIOError) else -1

    def _make_room(self, newest: str) -> None:
        assert self._folder is not None
        there = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                # Another rank may be removing it.
                with contextlib.suppress(FileNotFoundError):
                    if entry.name.startswith(_BLOCK) and entry.path != newest:
                        found = entry.stat()
                        there.append((found.st_mtime_ns, found.st_size, entry.path))
        size = os.path.getsize(newest) + sum(size for _, size, _ in there)
        for _, of_it, path in sorted(there):
            if size <= SHARED_BYTES:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            size -= of_it
