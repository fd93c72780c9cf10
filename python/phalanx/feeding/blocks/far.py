"""Blocks of other hosts, fetched from the nodes that serve them into files, ahead of their use, once for an executor.

FEED-17 (bounded): at most `CACHE_BYTES` are kept, or one block; a loader keeps some more while it uses them. In the
rank's folder the files have no names, so they go with the rank, however it ends; those that ranks share go with the
node.
FEED-18 (ahead): what a loader needs next is fetched while it works, in the order in which it is needed.
FEED-19 (same-bytes): bytes that are not those that were written are an error, which names the host and the block.
FEED-20 (ends): the thread ends with `close`, and every wait has an end, also where a host is lost or can't be reached.
That error counts as a lost peer's. A store behind a URI has the time-outs of its own.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from .shared import SharedBlocks

if TYPE_CHECKING:
    from .index import Index

CACHE_BYTES = 1 << 30
# How many blocks ahead are looked at: a window of the shuffle, and the next.
AHEAD_BLOCKS = 256
# A connection that broke is tried again after so long. By then the driver knows that a node is lost (after 2 s), and
# has said so to all: the cause is the lost node, and the ranks may start again.
AGAIN_AFTER_S = 3.0
# How often a rank looks whether the others have fetched what it needs, while it has nothing else to fetch.
LOOK_EVERY_S = 0.02


class BlockClient(Protocol):
    """What fetches a block: `_native.BlockClient` from a node on another host, `StoredBlocks` from a store."""

    def fetch(self, host: str, file: str, start: int, length: int, into: str) -> None:
        """Writes `length` bytes of `file` on `host`, from `start` on, to the file `into`."""


class FarBlocks:
    """The blocks of an index that can't be mapped here, for one process: a fork makes its own.

    They are fetched into `folder`, and those of all ranks that have the same `shared` folder are fetched once.
    """

    def __init__(self, index: Index, client: BlockClient, folder: str, shared: str | None = None) -> None:
        self.process = os.getpid()
        self._index = index
        self._client = client
        self._folder = folder
        self._shared = SharedBlocks(index, shared)
        self._news = threading.Condition()
        self._wanted: list[int] = []
        self._urgent: int | None = None
        self._there: OrderedDict[int, mmap.mmap] = OrderedDict()
        self._failed: dict[int, BaseException] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def ahead(self, blocks: Iterable[int]) -> None:
        """Has these fetched, as far as there is room, in this order."""
        wanted, size = [], 0
        for block in blocks:
            size += self._index.blocks[block].bytes
            if size > CACHE_BYTES:
                break
            wanted.append(block)
        with self._news:
            self._wanted = wanted
            self._wake()

    def get(self, block: int) -> mmap.mmap:
        """The bytes of a block; waits for it, and has it fetched before others where it isn't there.

        Raises what the client's `fetch` does, and `RuntimeError` for bytes that were changed, or after `close`.
        """
        with self._news:
            while block not in self._there:
                if block in self._failed:
                    raise self._failed.pop(block)
                if self._closed:
                    raise RuntimeError(
                        "the blocks of other hosts are no longer fetched: their source is closed"
                    )
                self._urgent = block
                self._wake()
                self._news.wait()
            self._there.move_to_end(block)
            return self._there[block]

    def close(self) -> None:
        """Ends the thread, after the block that it is fetching; waits for nothing."""
        if self.process == os.getpid():  # in a fork there is no thread, and the lock may be held for ever
            with self._news:
                self._closed = True
                self._there.clear()
                self._news.notify_all()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._fetch_all, name="phalanx-fetch", daemon=True)
            self._thread.start()
        self._news.notify_all()

    def _fetch_all(self) -> None:
        while True:
            with self._news:
                while not (missing := self._missing()) and not self._closed:
                    self._news.wait()
                if self._closed:
                    return
            if not any(map(self._has_come, missing)):
                with self._news:
                    self._news.wait(LOOK_EVERY_S)

    def _missing(self) -> list[int]:
        candidates = self._wanted if self._urgent is None else [self._urgent, *self._wanted]
        return [at for at in candidates if at not in self._there and at not in self._failed]

    def _has_come(self, block: int) -> bool:
        """Fetches a block, unless another rank does; whether there is news of it."""
        problem: BaseException | None = None
        found = self._shared.found(block)
        if found is None:
            with self._shared.turn(block) as is_mine:
                if not is_mine:
                    return False
                try:
                    found = self._shared.found(block) or self._fetched_or_again(block)
                except BaseException as error:
                    problem = error
        with self._news:
            if self._urgent == block:
                self._urgent = None
            if found is not None:
                self._there[block] = found
                self._make_room(block)
            elif problem is not None:
                self._failed[block] = problem
            self._news.notify_all()
        return True

    def _make_room(self, newest: int) -> None:
        size = sum(map(len, self._there.values()))
        keep = {newest, *self._wanted}
        for block in [at for at in self._there if at not in keep] + [
            at for at in self._there if at != newest
        ]:
            if size <= CACHE_BYTES:
                return
            if block in self._there:
                size -= len(self._there.pop(block))  # arrays that still use it keep it

    def _fetched_or_again(self, number: int) -> mmap.mmap:
        try:
            return self._fetched(number)
        except RuntimeError as problem:
            if getattr(problem, "kind", "") != "peer_lost":
                raise
        with self._news:
            self._news.wait_for(lambda: self._closed, AGAIN_AFTER_S)
        return self._fetched(number)

    def _fetched(self, number: int) -> mmap.mmap:
        block = self._index.blocks[number]
        file, host = self._index.files[block.file], self._index.hosts[block.file]
        descriptor, path = tempfile.mkstemp(prefix="block-", dir=self._folder)
        try:
            self._client.fetch(host, file, block.start, block.bytes, path)
            found = mmap.mmap(descriptor, block.bytes, access=mmap.ACCESS_READ)
            if zlib.crc32(found) != block.checksum:
                raise RuntimeError(
                    f"block {number} of the data set {self._index.name!r} came from {host or 'its store'} with other "
                    f"bytes than were written to {file} there (its checksum is {zlib.crc32(found):08x} and should be "
                    f"{block.checksum:08x})"
                )
            self._shared.keep(number, path)
        finally:
            os.close(descriptor)
            os.unlink(path)
        return found
