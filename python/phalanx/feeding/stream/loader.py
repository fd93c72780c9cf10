"""`StreamLoader`: one pass over a streamed data set, in batches as a `Loader` gives them.

FEED-51 (equal-steps): every rank has as many steps, and each batch as many rows. With "drop" the steps end at the first
for which some rank has too few rows, else when no rank has a row left.
FEED-52 (same-tensors): batches have the tensors that a `Loader` makes of the same rows, but for arrays: one that has no
`pad` is taken to have one length, and another length is an error.
FEED-53 (ahead): a thread receives and converts rows while the rank trains: up to `GATHERED_BYTES` or one step at a
time, and one such window more.
FEED-54 (thread-ends): the thread ends with the pass, also at the process's exit, whose end of libraries it would meet.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from ...rank.reporting import waited_for_data
from ..loader.loader import GATHERED_BYTES, GATHERED_ROWS, MASK, Loader, with_mask
from ..loader.options import LoaderOptions
from .rows import StreamColumns, WaitingRows
from .step_agreement import StepAgreement

if TYPE_CHECKING:
    from .source import StreamSource

# A window that takes longer to come is made smaller: its first step waits for its last.
SLOW_S = 0.25
_UNEVEN = ("drop", "wrap", "pad")


class StreamLoader(Loader):
    """Gives batches: dictionaries of tensors, by column. One pass, of unknown length, in the order in which rows come.

    What a `Loader` has for further epochs, for lengths and for states is refused.
    """

    def __init__(
        self,
        source: StreamSource,
        options: LoaderOptions,
        *,
        store: Callable[[], Any] | None = None,
    ) -> None:
        shuffle, uneven = options.shuffle, options.uneven
        if shuffle is not False:
            raise ValueError(
                f"the data set {source.name!r} is streamed, so its rows come in Spark's order and "
                f"shuffle={shuffle!r} isn't possible; shuffle them in Spark (df.orderBy(rand()))"
            )
        if uneven not in _UNEVEN:
            raise ValueError(f"uneven is {uneven!r}, but has to be one of {', '.join(_UNEVEN)}")
        self._stream = source
        self._options = options
        self._rank, self._world_size = options.part
        self._agreement = StepAgreement(source.name, self._rank, self._world_size, store)

    def __len__(self) -> int:
        raise TypeError(
            f"the data set {self._stream.name!r} is streamed, so its number of steps is not known before its end"
        )

    def __iter__(self) -> Iterator[Any]:
        self._stream.begin()
        windows = _Windows(self)
        steps = _Steps(windows)
        weakref.finalize(steps, windows.leave)
        return steps

    def share(self, first: int, every: int) -> Iterator[Any]:
        """Refused."""
        raise RuntimeError(
            f"the data set {self._stream.name!r} is streamed, so its rows come to the rank itself and not to its "
            "worker processes; use num_workers=0, or the loader as it is"
        )

    @property
    def epoch(self) -> int:
        """0: there is one."""
        return 0

    def set_epoch(self, epoch: int) -> None:
        """Refused, but for 0."""
        if epoch != 0:
            self._refuse("has one epoch")

    def state_dict(self) -> dict[str, Any]:
        """Refused."""
        self._refuse("has no state to resume from")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refused."""
        self._refuse("has no state to resume from")

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(
            f"the data set {self._stream.name!r} is streamed, so it {what}: its rows come once; pass the "
            "DataFrame without streamed(), or as phalanx.stored(df, uri), whose loaders have epochs and states"
        )


class _Steps:
    """The pass: what the windows give, step by step."""

    def __init__(self, windows: _Windows) -> None:
        self._windows = windows

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        asked = time.monotonic()
        found = self._windows.next()
        if found is _END:
            raise StopIteration
        waited_for_data(time.monotonic() - asked)
        return found


_END = object()


class _Windows:
    """What the thread makes ahead: the batches of a window at a time.

    It holds no pass, whose end ends it.
    """

    def __init__(self, loader: StreamLoader) -> None:
        self._loader = loader
        self._options = loader._options
        self._size = self._options.batch_size
        self._agreement = loader._agreement
        self._rows = WaitingRows(loader._stream, loader._rank, self._size)
        nulls, pad, uneven = self._options.nulls, self._options.pad, self._options.uneven
        self._columns = StreamColumns(loader._stream.name, nulls=nulls, pad=pad, uneven=uneven)
        self._made: queue.Queue[Any] = queue.Queue(1)
        self._left = False
        self._over = False
        self._steps = 0
        self._window: Iterator[Any] = iter(())
        """The batches that were made and not taken; with a transform its record batches, with their masks."""
        self._thread = threading.Thread(target=self._main, name="phalanx-stream", daemon=True)
        self._thread.start()

    def next(self) -> Any:
        """The next batch, or `_END`; raises what the thread did."""
        while not self._over:
            for found in self._window:
                self._steps += 1
                transform = self._options.transform
                if transform is None:
                    return found
                batch, mask = found
                return with_mask(transform(batch), mask) if mask else transform(batch)
            window = self._made.get()
            if isinstance(window, list):
                self._window = iter(window)
                continue
            self._over = True
            self._thread.join()
            if isinstance(window, BaseException):
                raise window
        return _END

    def leave(self) -> None:
        """Ends the thread, and tells the other ranks, where the pass is not over."""
        self._left = True
        self._loader._stream.close()
        if not self._over:
            self._agree_no_more()
        if (
            threading.current_thread() is not self._thread
        ):  # where a pass is in a cycle, any thread may find it
            self._thread.join()

    def _agree_no_more(self) -> None:
        with contextlib.suppress(
            Exception
        ):  # the store has gone, and the other ranks hear of the end without it
            self._agreement.leave(self._steps)

    def _main(self) -> None:
        try:
            self._make()
            last: Any = _END
        except BaseException as problem:
            last = problem
            self._agree_no_more()
        self._put(last)

    def _put(self, made: Any) -> None:
        while not self._left:
            try:
                return self._made.put(made, timeout=0.1)
            except queue.Full:
                continue

    def _make(self) -> None:
        loader, rows = self._loader, self._rows
        most = max(1, GATHERED_ROWS // self._size)
        steps, may_grow, drops = 1, True, self._options.uneven == "drop"
        while not self._left:
            began = time.monotonic()
            rows.wait_for(steps * self._size)
            fills = rows.has_ended and not drops
            own = -(-rows.count // self._size) if fills else rows.count // self._size
            if loader._world_size == 1:
                given = min(own, most)
                if not given:
                    break
                self._put(self._converted(given))
                continue
            less = time.monotonic() - began > SLOW_S or rows.bytes > GATHERED_BYTES
            votes = self._agreement.vote(ended=own < steps, less=less)
            if votes is None:
                return
            is_short = votes.ended > 0 if drops else votes.ended == loader._world_size
            if not is_short:
                self._put(self._converted(steps))
            elif steps == 1:
                break
            if is_short:  # some of its steps there may be
                steps, may_grow = 1, False
            elif may_grow:
                steps = max(1, steps // 2) if votes.less else min(most, steps * 2)
        left_out = rows.finish()
        if left_out and not self._left:
            print(
                f"phalanx: the data set {loader._stream.name!r} ends here for all ranks, since one of them "
                f"has no whole batch left; rank {loader._rank} leaves out {left_out}",
                file=sys.stderr,
            )

    def _converted(self, steps: int) -> list[Any]:
        import numpy as np

        from ..loader.arrow_memory import Texts
        from ..loader.window import Window

        batch, own = self._rows.take(steps)
        size = self._size
        mask = {MASK: np.arange(steps * size) < own} if self._options.uneven == "pad" else {}
        if self._options.transform is not None:
            masks = Window(steps * size, size, mask)
            return [(batch.slice(at * size, size), one) for at, one in enumerate(masks)]
        columns = zip(self._columns.of(batch), batch.columns, strict=True)
        values: dict[str, Any] = {
            column.name: Texts(array).values() if column.listed else column.rows(array)
            for column, array in columns
        }
        return list(Window(steps * size, size, values | mask))
