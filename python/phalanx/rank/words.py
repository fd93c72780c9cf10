"""The words that a rank and its node have in common memory; `rust/supervisor/src/rank_words.rs` says which is where.

They are read and written as they are, without a call of the node's. A word is stored whole.
"""

from __future__ import annotations

import mmap

from . import contract
from .report_memory import ReportMemory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._native import RankWords

# Which word of the memory is what.
_VERSION, _GENERATION, _ASKED, _REPORTED, _FROZEN, _NOTICES = range(6)


class Words:
    """The rank's end of them. It keeps the descriptor, and what it is mapped by, as long as the process lives."""

    def __init__(self, fd: int) -> None:
        """Raises OSError or ValueError if it is the descriptor of something else."""
        # An array of native words, for one is stored by one instruction. Where these aren't little-endian, nothing of
        # ours runs.
        self._words = memoryview(mmap.mmap(fd, contract.WORDS_BYTES)).cast("B").cast("Q")
        if self._words[_VERSION] != contract.WORDS_FORMAT:
            raise ValueError(f"words of version {self._words[_VERSION]}")
        self.reports = ReportMemory(fd)
        self.fd = fd
        self._native: RankWords | None = None

    @property
    def generation(self) -> int:
        """Which generation this rank is of."""
        return self._words[_GENERATION]

    def report(self, step: int) -> None:
        """Reports a step; the node sees it at once, or when it looks."""
        self._words[_REPORTED] = step

    def ask(self, step: int) -> bool:
        """Asks for a step; whether this rank may begin it now. To store and then load takes a fence, so the core does
        it: `rust/supervisor/src/freeze.rs`."""
        return self._core().ask(step)

    @property
    def frozen(self) -> bool:
        """Whether this rank may begin no step."""
        return self._words[_FROZEN] != 0

    def go_on(self, step: int) -> None:
        """Begins this step though the rank is frozen, since it has waited long enough. Its node knows of it, or the
        rank finds what it is told; GUARD-22."""
        self._core().go_on(step)

    @property
    def notices(self) -> int:
        """How many bytes of notices there are."""
        return self._words[_NOTICES]

    def _core(self) -> RankWords:
        if self._native is None:
            from .. import _native

            self._native = _native.RankWords(f"/proc/self/fd/{self.fd}")
        return self._native
