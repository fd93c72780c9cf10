"""A data set's blocks as tasks have written them, for as long as a run may need some of them again."""

from __future__ import annotations

from collections.abc import Collection

from ... import _native
from .identity import Identity, difference
from .index import Block, Facts, Index
from .jobs import WriteJob, WrittenBlock
from .write import BLOCK_BYTES


class WrittenSet:
    """The blocks of one data set. Making one starts nothing."""

    def __init__(self, name: str, job: WriteJob, whole: bool) -> None:
        self._name = name
        self._job = job
        self._whole = whole
        self._blocks: list[WrittenBlock] = []
        self._identity = Identity()
        self._even_rows = 0

    def write(self) -> None:
        """Has Spark write them; raises what Spark raises."""
        self._blocks = _in_order(self._job.write())
        self._identity = _identity(self._blocks)
        # What the first index settles, later ones keep: an order that goes on depends on it.
        self._even_rows = _native.even_rows(
            [block.rows for block in self._blocks], [block.bytes for block in self._blocks], BLOCK_BYTES
        )

    def can_be_mended(self) -> bool:
        """Whether partitions can be written again by themselves; else it has to be all of them."""
        return self._job.is_settled()

    def write_again(self, gone: Collection[str]) -> str | None:
        """Has Spark write the partitions again whose files are `gone`, or all.

        Gives what is different about the rows then, in a sentence; None if nothing is. Raises what Spark raises.
        """
        surviving = (
            [block for block in self._blocks if block.path not in gone] if self.can_be_mended() else []
        )
        written = self._job.write({block.partition for block in surviving})
        self._blocks = _in_order([*surviving, *written])
        before, now = str(self._identity), str(_identity(self._blocks))
        return None if before == now else difference(before, now)

    @property
    def files(self) -> list[tuple[str, str]]:
        """The host and the path of each file."""
        return list({block.path: (block.host, block.path) for block in self._blocks}.values())

    @property
    def paths(self) -> list[str]:
        """The path of each file."""
        return [path for _, path in self.files]

    def index(self) -> Index:
        """The index of what there is."""
        number = {path: at for at, path in enumerate(self.paths)}
        return Index(
            name=self._name,
            hosts=[host for host, _ in self.files],
            files=list(number),
            blocks=[
                Block(number[block.path], block.start, block.bytes, block.rows, block.checksum)
                for block in self._blocks
            ],
            facts=Facts.together(block.facts for block in self._blocks),
            whole=self._whole,
            identity=str(self._identity),
            even_rows=self._even_rows,
        )


def _in_order(blocks: Collection[WrittenBlock]) -> list[WrittenBlock]:
    return sorted(blocks, key=lambda block: (block.partition, block.number))


def _identity(blocks: Collection[WrittenBlock]) -> Identity:
    return Identity.together(Identity.of(block.rows, block.content, block.sequence) for block in blocks)
