"""Where a loader's blocks come from: files that Spark's tasks wrote, on this host or another, or a table in memory.

FEED-4 (says-so): a block that can't be read is an error which says where it should be, and who wrote it.
FEED-5 (few-files): at most `OPEN_FILES` files are mapped at a time.
FEED-6 (kept-whole): a block that is kept has the bytes that were written, however long ago: its checksum is compared
when it is first read.
FEED-74 (gone-is-lost): a block that is gone from its host went with an executor. The rank says so, and its run ends as
one that lost a node, or has the block written again.
"""

from __future__ import annotations

import mmap
import os
import socket
import weakref
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from ... import _native
from .by_uri import StoredBlocks, is_stored
from .far import BlockClient, FarBlocks
from .index import Facts, Index, fingerprint
from .write import BLOCK_BYTES, BLOCK_ROWS, as_stream, facts_of, regrouped

if TYPE_CHECKING:
    from collections.abc import Iterable

OPEN_FILES = 256


class LostBlocks(RuntimeError):
    """Blocks are gone from the host that had them."""

    kind = "blocks_lost"


class BlockSource(Protocol):
    """The blocks of a data set."""

    name: str
    rows: list[int]
    """How many rows each block has."""
    bytes: int
    """How many bytes all have."""
    facts: Facts
    whole: bool
    """Whether every rank takes all rows."""
    far_bytes: int
    """How many bytes are on other hosts, or where fsspec opens them."""

    def ahead(self, blocks: Iterable[int]) -> None:
        """Has blocks of other hosts fetched that are needed soon, the first of these first."""

    def batch(self, block: int) -> Any:
        """A block as an Arrow record batch, without a copy."""

    even_rows: int
    """How many rows a block of an epoch's order has; 0 where it is that of these blocks."""
    identity: str
    """What tells the rows from others, wherever blocks were cut; empty where rows have no hashes."""

    def fingerprint(self) -> str:
        """What tells the blocks from others."""


class MappedBlocks:
    """Blocks in files, mapped into memory.

    Those of other hosts are fetched into `folder`, where `access` says how (`rank.contract.FILE_BLOCKS`), and so are
    those that fsspec opens by a URI; ranks with the same folder `shared` fetch each once. Blocks that are kept in a
    folder have no host: all share it.
    """

    def __init__(
        self, index: Index, access: bytes | None = None, folder: str = "", shared: str | None = None
    ) -> None:
        self.name = index.name
        self.rows = [block.rows for block in index.blocks]
        self.bytes = sum(block.bytes for block in index.blocks)
        self.facts = index.facts
        self.whole = index.whole
        self.even_rows = index.even_rows
        self.identity = index.identity
        self._index = index
        self._files: OrderedDict[int, Any] = OrderedDict()
        self._compared: set[int] = set()
        self._access = access
        self._folder = folder
        self._shared = shared
        self._far: FarBlocks | None = None
        # What is here is read here: hosts may share a disk, or a name.
        self._far_files = {
            number
            for number, (file, host) in enumerate(zip(index.files, index.hosts, strict=True))
            if is_stored(file) or (host and access and not os.path.exists(file))
        }
        self.far_bytes = sum(block.bytes for block in index.blocks if block.file in self._far_files)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_files": OrderedDict(), "_far": None}

    def ahead(self, blocks: Iterable[int]) -> None:
        far = [block for block in blocks if self._index.blocks[block].file in self._far_files]
        self._fetching().ahead(far)

    def batch(self, block: int) -> Any:
        import pyarrow as pa

        at = self._index.blocks[block]
        if at.file in self._far_files:
            with pa.ipc.open_stream(pa.py_buffer(self._fetched(block))) as stream:
                return stream.read_next_batch()
        file = self._file(at.file)
        if len(file) < at.start + at.bytes:
            raise self._unreadable(at.file, f"it has {len(file)} bytes and should have more")
        data = pa.py_buffer(file).slice(at.start, at.bytes)
        if not self._index.hosts[at.file] and block not in self._compared:
            if zlib.crc32(data) != at.checksum:
                raise self._unreadable(at.file, f"block {block} has other bytes than were written")
            self._compared.add(block)
        with pa.ipc.open_stream(data) as stream:
            return stream.read_next_batch()

    def fingerprint(self) -> str:
        return self._index.fingerprint()

    def _fetching(self) -> FarBlocks:
        # A process that was forked has neither the thread nor a right to the connections.
        if self._far is None or self._far.process != os.getpid():
            client: BlockClient = StoredBlocks()
            if any(self._index.hosts):
                assert self._access is not None
                client = _native.BlockClient(self._access)
            self._far = FarBlocks(self._index, client, self._folder, self._shared)
            weakref.finalize(self, self._far.close).atexit = False
        return self._far

    def _fetched(self, block: int) -> mmap.mmap:
        try:
            return self._fetching().get(block)
        except FileNotFoundError as problem:
            raise self._unreadable(self._index.blocks[block].file, str(problem), gone=True) from problem

    def _file(self, number: int) -> mmap.mmap:
        found = self._files.get(number)
        if found is None:
            try:
                with open(self._index.files[number], "rb") as file:
                    found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as problem:  # an empty file can't be mapped
                gone = isinstance(problem, FileNotFoundError)
                raise self._unreadable(number, str(problem), gone=gone) from problem
            self._files[number] = found
            if len(self._files) > OPEN_FILES:
                # Arrays that still use it keep it.
                self._files.popitem(last=False)
        self._files.move_to_end(number)
        return found

    def _unreadable(self, number: int, problem: str, *, gone: bool = False) -> RuntimeError:
        host, here = self._index.hosts[number], socket.gethostname()
        if not host:
            return RuntimeError(
                f"the blocks of the data set {self.name!r} in {self._index.files[number]} can't be read on {here}: "
                f"{problem}; every host with ranks has to reach them, and if they are gone for good, remove the index "
                "beside their folder, and the next run writes them again"
            )
        kind = LostBlocks if gone else RuntimeError
        return kind(
            f"the blocks of the data set {self.name!r} in {self._index.files[number]} on {host} "
            f"can't be read: {problem}; Spark removes them with the executor that wrote them, so start the run again"
        )


class TableBlocks:
    """An Arrow table in memory."""

    def __init__(self, table: Any, *, whole: bool, name: str = "table") -> None:
        self.name = name
        self.whole = whole
        self.far_bytes = 0
        self.even_rows = 0
        self.identity = ""
        self._batches = list(regrouped(_batches(table), BLOCK_BYTES, BLOCK_ROWS))
        self.rows = [batch.num_rows for batch in self._batches]
        self.bytes = sum(batch.nbytes for batch in self._batches)
        self.facts = Facts.together(map(facts_of, self._batches))
        self._fingerprint: str | None = None

    def ahead(self, blocks: Iterable[int]) -> None:
        """All are here."""

    def batch(self, block: int) -> Any:
        return self._batches[block]

    def fingerprint(self) -> str:
        if self._fingerprint is None:  # a table never changes
            self._fingerprint = fingerprint(
                (batch.num_rows, zlib.crc32(as_stream(batch))) for batch in self._batches
            )
        return self._fingerprint


def _batches(table: Any) -> Iterable[Any]:
    """The record batches of a table, with values in the place of what a dictionary has."""
    import pyarrow as pa

    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    batches: list[Any] = table.cast(pa.schema(fields)).to_batches()
    return batches
