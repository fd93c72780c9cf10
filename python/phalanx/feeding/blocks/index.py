"""The index of a data set: where its blocks are, and what they have. It travels to the ranks in their payload.

FEED-21 (small): it has a few numbers for each block, whatever the rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Block(NamedTuple):
    """A block in a file."""

    file: int
    """Which of the index's files."""
    start: int
    bytes: int
    rows: int
    checksum: int
    """CRC-32 of its bytes."""


class Facts(NamedTuple):
    """What all blocks together have; `feeding/blocks/write.py` says what."""

    nulls: dict[str, int]
    lengths: dict[str, list[list[int]]]

    @staticmethod
    def together(all_facts: Iterable[Mapping[str, Any]]) -> Facts:
        """Those of the whole, from those of the blocks."""
        nulls: dict[str, int] = {}
        lengths: dict[str, list[list[int]]] = {}
        for facts in all_facts:
            for name, count in facts["nulls"].items():
                nulls[name] = nulls.get(name, 0) + count
            for name, levels in facts["lengths"].items():
                before = lengths.setdefault(name, [[-1, -1] for _ in levels])
                lengths[name] = [_span(one, other) for one, other in zip(before, levels, strict=True)]
        return Facts(nulls, lengths)


class Index(NamedTuple):
    """A data set that has been prepared."""

    name: str
    hosts: list[str]
    """Whose disk has each file."""
    files: list[str]
    blocks: list[Block]
    facts: Facts
    whole: bool
    """Whether every rank takes all rows."""
    identity: str = ""
    """What tells the rows from others, wherever blocks are cut (`identity.py`); empty for what an older Phalanx
    has stored."""
    even_rows: int = 0
    """How many rows a block of an epoch's order has; 0 where the order is that of these blocks."""

    @classmethod
    def read(cls, packed: Mapping[str, Any]) -> Index:
        """What `pack` packed, from JSON."""
        fields = dict(packed)
        fields["blocks"] = [Block(*block) for block in fields["blocks"]]
        fields["facts"] = Facts(**fields["facts"])
        return cls(**fields)

    def fingerprint(self) -> str:
        """What told the data set from another one before rows had hashes: it follows from the blocks, too."""
        return fingerprint((block.rows, block.checksum) for block in self.blocks)

    def pack(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self._asdict(), "facts": self.facts._asdict()}


def fingerprint(blocks: Iterable[tuple[int, int]]) -> str:
    """What tells blocks from other ones, from the rows and the checksum of each in order."""
    sum_of = 0
    count = 0
    for rows, checksum in blocks:
        sum_of = zlib.crc32(b"%d %d\n" % (rows, checksum), sum_of)
        count += rows
    return f"{count} rows, {sum_of:08x}"


def _span(one: list[int], other: list[int]) -> list[int]:
    if one[0] < 0 or other[0] < 0:
        return other if one[0] < 0 else one
    return [min(one[0], other[0]), max(one[1], other[1])]
