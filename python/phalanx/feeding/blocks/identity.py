"""What tells the rows of a data set from other rows: numbers of its rows' hashes, wherever blocks are cut.

A row's hash is Spark's (`row_hash.py`). Of the rows of a block there is their number, the sum of their hashes, which
doesn't depend on their order, and a polynomial of them, which does: of the hashes h1 to hn it is
`h1 B^(n-1) + ... + hn` modulo the prime `2^61 - 1`, so two neighbours' make that of both (Karp and Rabin, 1987). Those
who write blocks compute both numbers: `write_blocks.py` and the jar's `RowSums`.

FEED-62 (any-cut): the identity follows from the rows and their order, and not from blocks, partitions or writers.
FEED-63 (told-apart): where it differs one sentence says whether the rows are others, in another order, or as many with
other values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from .write import BASE, PRIME

_WORD = (1 << 64) - 1
_TEXT = re.compile(r"(\d+) rows, content ([0-9a-f]{16}), order ([0-9a-f]{16})")


class Identity(NamedTuple):
    """That of some rows that follow one another."""

    rows: int = 0
    content: int = 0
    """The sum of their hashes, modulo 2^64."""
    order: int = 0
    """The polynomial of their hashes."""

    @staticmethod
    def of(rows: int, content: int, order: int) -> Identity:
        """That of a block, from the numbers of whoever wrote it; 64 bits may stand for a negative number."""
        return Identity(rows, content & _WORD, order)

    @staticmethod
    def together(parts: Iterable[Identity]) -> Identity:
        """That of all rows, from those of parts one behind another."""
        rows = content = order = 0
        for part in parts:
            rows += part.rows
            content = (content + part.content) & _WORD
            order = (order * pow(BASE, part.rows, PRIME) + part.order) % PRIME
        return Identity(rows, content, order)

    @staticmethod
    def read(text: object) -> Identity | None:
        """What `str` made a text of; None for any other."""
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        return None if match is None else Identity(int(match[1]), int(match[2], 16), int(match[3], 16))

    def __str__(self) -> str:
        return f"{self.rows} rows, content {self.content:016x}, order {self.order:016x}"


def difference(was: object, now: str) -> str:
    """What is different about rows that had the identity `was` and have `now` another one, and what helps."""
    before, after = Identity.read(was), Identity.read(now)
    if before is None or after is None:
        return f"its blocks are others ({was or 'none are known'} before, {now or 'none are known'} now)"
    if before.rows != after.rows:
        return (
            f"it has other rows ({before.rows} before, {after.rows} now): what it is computed from has changed, or "
            "gives other rows each time; write the DataFrame to a table and read that, or keep it (phalanx.stored)"
        )
    if before.content == after.content:
        return (
            "it has the same rows in another order, which Spark doesn't promise for this DataFrame; sort it by "
            "columns that tell all rows apart (orderBy), set spark.phalanx.data.order to content, or keep it "
            "(phalanx.stored)"
        )
    return (
        f"it has the same number of rows ({after.rows}) but other values: sums of floats, collect_list and "
        "first may give others each time they are computed after a shuffle, and so do generated values such "
        "as rand() and uuid(); write the DataFrame to a table and read that, or keep it (phalanx.stored)"
    )
