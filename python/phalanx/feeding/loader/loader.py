"""`Loader`: the batches of one rank, epoch after epoch.

The Rust core plans which rows come when (`_native.DataPlan`); a loader gathers them, for some steps at a time.

FEED-22 (equal-steps): every rank has the same number of steps, and each of its batches has as many rows.
FEED-23 (resumes): a loader that was given another's state goes on with the next row of the same order, whatever the
number of ranks and the size of batches.
FEED-24 (same-data): a state of other data, or of another order, is refused.
FEED-25 (few-imports): who imports this imports neither torch nor numpy nor pyarrow; a loader does.
"""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ... import _native
from ...rank.reporting import waited_for_data
from ..blocks.far import AHEAD_BLOCKS, CACHE_BYTES
from ..blocks.identity import difference
from .columns import Column, columns_of
from .options import LoaderOptions

if TYPE_CHECKING:
    from ..blocks.source import BlockSource
    from .gather import BlockInMemory, Rows

# What is planned at a time, and of columns that aren't plain numbers gathered: enough that a step costs little, and
# little memory.
GATHERED_ROWS = 1 << 14
GATHERED_BYTES = 16 << 20
# Blocks that are looked at in memory at a time. A window of the shuffle has 32 at the most, mostly; each may have a
# file of its own open.
KEPT_BLOCKS = 512
# The same where some were fetched from other hosts, and lie here as long as they are looked at.
KEPT_FAR_BLOCKS = 64

MASK = "mask"

_SHUFFLES: dict[Any, str] = {True: "windows", False: "no", "full": "full"}


class Loader:
    """Gives batches: dictionaries of tensors, by column.

    Each pass over it is an epoch, and shuffles anew; one that takes no batch counts for nothing. `len` is the number of
    steps of a whole one.
    """

    def __init__(self, source: BlockSource, options: LoaderOptions) -> None:
        if options.shuffle == "full" and source.far_bytes > CACHE_BYTES:
            raise ValueError(
                f'shuffle="full" reads all blocks at each step, and {source.far_bytes >> 20} MiB of the data set '
                f"{source.name!r} are on other hosts or behind a URI, more than the {CACHE_BYTES >> 20} MiB that a "
                "rank keeps of them; use shuffle=True, and df.orderBy(rand(seed)) before it where the rows are sorted"
            )
        self._source = source
        self._kept_blocks = KEPT_FAR_BLOCKS if source.far_bytes else KEPT_BLOCKS
        self._batch_size = options.batch_size
        self._shuffle = _SHUFFLES.get(options.shuffle, repr(options.shuffle))
        self._seed = options.seed
        self._transform = options.transform
        rank, world_size = options.part
        self._plan_fields: dict[str, Any] = {
            "shuffle": self._shuffle,
            "uneven": options.uneven,
            "seed": options.seed % (1 << 64),
            "batch_size": options.batch_size,
            "rank": rank,
            "world_size": world_size,
        }
        self._even_rows = source.even_rows
        self._plan = self._planned()
        self._columns: list[Column] | None = None
        if source.rows and options.transform is None:
            schema = source.batch(0).schema
            self._columns = columns_of(
                schema, source.facts, data_set=source.name, nulls=options.nulls, pad=options.pad
            )
            if options.uneven == "pad" and any(column.name == MASK for column in self._columns):
                raise ValueError(
                    f'the data set {source.name!r} has a column {MASK!r}, which uneven="pad" adds to batches; rename it'
                )
        rows = sum(source.rows)
        if rows and len(self) == 0:
            warnings.warn(
                f"the data set {source.name!r} has {rows} rows, fewer than the {self._plan.rows_a_step} of a step, so "
                'an epoch has no steps; uneven="wrap" or "pad" gives it one',
                stacklevel=3,
            )
        self._next = (0, 0)
        self._place = (0, 0)
        self._passes = 0
        self._blocks: OrderedDict[int, BlockInMemory] = OrderedDict()

    def __len__(self) -> int:
        return self._plan.steps_from(0)

    def __iter__(self) -> Iterator[Any]:
        epoch, row = self._begin()
        return self._pass(epoch, row, self._passes)

    def share(self, first: int, every: int) -> Iterator[Any]:
        """A pass with only the step `first`, and each `every` further: what one worker process of several takes."""
        epoch, row = self._begin()
        self._next = (epoch + 1, 0)  # also where this worker has no step: all of them are in the same epoch
        return self._steps(epoch, row, first, every)

    def _begin(self) -> tuple[int, int]:
        self._passes += 1
        self._place = self._next
        return self._next

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._place[0]

    def set_epoch(self, epoch: int) -> None:
        """Has the next pass be this epoch, from its beginning; or from where the loader was loaded in it."""
        if self._next[0] != epoch:
            self._next = self._place = (epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: which epoch, and how many rows of its order all ranks together have taken. It is the
        same on every rank, and for any number of ranks."""
        epoch, row = self._place
        return {
            "epoch": epoch,
            "row": row,
            "data": self._data(self._even_rows),
            "even_rows": self._even_rows,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Has the next pass go on where the loader was whose state this is.

        Raises `ValueError` where that one had other data, or another order of it.
        """
        for name, own in (("seed", self._seed), ("shuffle", self._shuffle)):
            if state.get(name) != own:
                raise ValueError(
                    f"this state was saved with another {name} ({state.get(name)!r}, here {own!r}), so the "
                    "rows that were already taken are not known"
                )
        even_rows = int(state.get("even_rows", 0))  # a state of before there were any goes by blocks
        was, here = state.get("data"), self._data(even_rows)
        if was != here:
            raise ValueError(
                f"this state was saved with other data than the data set {self._source.name!r} has here, so "
                f"the rows that were already taken are not known: since then {difference(was, here)}"
            )
        if even_rows != self._even_rows:
            self._even_rows = even_rows
            self._plan = self._planned()
        self._next = self._place = (int(state["epoch"]), int(state["row"]))

    def _data(self, even_rows: int) -> str:
        """What tells the data from other data, as far as an order depends on it: that of the blocks that are there
        depends on these."""
        return self._source.identity if even_rows else self._source.fingerprint()

    def _planned(self) -> _native.DataPlan:
        return _native.DataPlan(self._source.rows, even_rows=self._even_rows, **self._plan_fields)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_plan": None, "_blocks": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._plan = self._planned()

    def _pass(self, epoch: int, row: int, number: int) -> Iterator[Any]:
        left = self._plan.steps_from(row)
        if not left:
            self._next = self._place = (epoch + 1, 0)
        asked = time.monotonic()
        for batch in self._steps(epoch, row):
            waited_for_data(time.monotonic() - asked)
            row += self._plan.rows_a_step
            left -= 1
            if number == self._passes:  # the newest pass says where the loader is
                self._next = (epoch + 1, 0)
                self._place = (epoch, row) if left else self._next
            yield batch
            asked = time.monotonic()

    def _steps(self, epoch: int, row: int, first: int = 0, every: int = 1) -> Iterator[dict[str, Any]]:
        """The batches of an epoch from a row of its order on: that of the step `first`, and of each `every` further."""
        from .gather import Rows

        at_once = self._steps_at_once()
        for at in range(first, self._plan.steps_from(row), every * at_once):
            if self._source.far_bytes:
                now = row + at * self._plan.rows_a_step
                self._source.ahead(self._plan.blocks_from(epoch, now, AHEAD_BLOCKS))
            wanted, counts = self._plan.take(epoch, row, first=at, count=at_once, every=every)
            yield from self._batches(Rows(wanted, self._block), counts)

    def _steps_at_once(self) -> int:
        row_bytes = self._source.bytes // max(1, sum(self._source.rows))
        rows = min(GATHERED_ROWS, GATHERED_BYTES // max(1, row_bytes))
        return max(1, rows // self._batch_size)

    def _batches(self, rows: Rows, counts: bytes | None) -> Iterator[Any]:
        from .window import Window

        if self._columns is None:
            return self._transformed(rows, counts)
        values: dict[str, Any] = {}
        for at, column in enumerate(self._columns):
            if column.plain:
                values[column.name] = rows.in_blocks(at)
            elif column.listed:
                values[column.name] = rows.texts(at)
            else:
                values[column.name] = column.rows(rows.array(at))
        if counts is not None:
            values[MASK] = _mask(counts)
        return iter(Window(len(rows.wanted), self._batch_size, values, rows.wanted))

    def _transformed(self, rows: Rows, counts: bytes | None) -> Iterator[Any]:
        from .window import Window

        assert self._transform is not None
        size, whole = self._batch_size, rows.record_batch()
        masks = None if counts is None else iter(Window(whole.num_rows, size, {MASK: _mask(counts)}))
        for at in range(0, whole.num_rows, size):
            made = self._transform(whole.slice(at, size))
            yield made if masks is None else with_mask(made, next(masks))

    def _block(self, number: int) -> BlockInMemory:
        from .gather import BlockInMemory

        found = self._blocks.get(number)
        if found is None:
            found = self._blocks[number] = BlockInMemory(self._source.batch(number), self._columns)
            if len(self._blocks) > self._kept_blocks:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return found


def _mask(counts: bytes) -> Any:
    import numpy as np

    return np.frombuffer(counts, np.bool_)


def with_mask(made: Any, mask: Mapping[str, Any]) -> dict[str, Any]:
    """What a transform made, and which of its rows count."""
    if not isinstance(made, dict):
        raise TypeError(
            f'with uneven="pad" a transform has to return a dictionary, to which {MASK!r} is added, '
            f"not a {type(made).__name__}"
        )
    return {**made, **mask}
