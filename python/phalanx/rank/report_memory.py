"""The memory in which a rank writes down each of its reports, for its node; `rust/supervisor/src/report_reader.rs` has
the layout, and reads it.

RANK-40 (each-report): each report is in memory that the node has, too, when `put` returns, and stays there if the rank
is killed at that moment. A report costs no system call. Nothing here waits for the node; where it doesn't read the
oldest are overwritten.
RANK-41 (anywhere): `put` may be called in any thread, and in a signal's handler that interrupts it.
"""

from __future__ import annotations

import _thread
import mmap
from binascii import crc32
from collections import deque

from . import contract

# Of the rank's words, the one that counts the blocks that it has begun.
_BEGUN = 6
# Which word of a block is what, and how long they are.
_SEQUENCE, _FIRST, _USED = range(3)
_HEADER_BYTES = 32

_BLOCKS = contract.REPORTS_BYTES // contract.REPORT_BLOCK_BYTES
_MOST_USED = contract.REPORT_BLOCK_BYTES - _HEADER_BYTES


class ReportMemory:
    """The rank's end. It keeps what it is mapped by as long as the process lives."""

    def __init__(self, fd: int) -> None:
        """Raises OSError or ValueError if the descriptor is that of something else."""
        self._bytes = memoryview(mmap.mmap(fd, contract.WORDS_BYTES + contract.REPORTS_BYTES))
        self._words = self._bytes.cast("Q")
        self._waiting: deque[bytes] = deque()
        # Only tried: who finds it taken has come from a signal's handler, or from another thread.
        self._writing = _thread.allocate_lock()
        self._number = 0
        self._begun = self._block = 0
        self._used = _MOST_USED  # of a block before the first

    def put(self, report: bytes) -> None:
        """Writes down a report, of up to 60 KiB."""
        self._waiting.append(report)
        while self._waiting and self._writing.acquire(False):
            try:
                while self._waiting:
                    self._write(self._waiting.popleft())
            finally:
                self._writing.release()

    def _write(self, report: bytes) -> None:
        length = len(report)
        padded = (length + 7) & ~7
        if self._used + 8 + padded > _MOST_USED:
            if 8 + padded > _MOST_USED:
                return
            self._begin()
        words, block, used = self._words, self._block, self._used
        at = block + _HEADER_BYTES + used
        crc = crc32(report, crc32(self._number.to_bytes(8, "little")))
        words[at >> 3] = crc << 32 | length
        self._bytes[at + 8 : at + 8 + padded] = report.ljust(padded, b"\0")
        self._number += 1
        self._used = used = used + 8 + padded
        words[(block >> 3) + _USED] = used

    def _begin(self) -> None:
        """Begins a block, over the oldest."""
        self._block = contract.WORDS_BYTES + self._begun % _BLOCKS * contract.REPORT_BLOCK_BYTES
        self._used = 0
        words, block = self._words, self._block >> 3
        words[block + _SEQUENCE] = 0
        words[block + _USED] = 0
        words[block + _FIRST] = self._number
        self._begun += 1
        words[block + _SEQUENCE] = self._begun
        words[_BEGUN] = self._begun
