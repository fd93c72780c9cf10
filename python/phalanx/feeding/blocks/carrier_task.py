"""One task of a round of carriers, in a Python worker of Spark (`feeding/blocks/carriers.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

# A task that isn't wanted keeps its slot so long: Spark gives the other tasks of the round other slots meanwhile.
HOLD_S = 0.3


def carrier(
    spec: bytes, first: int, wanted: list[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: serves the blocks of its host, if that is `wanted`, until it is not needed."""

    # A nested function travels by value.
    def task(rows: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from phalanx.feeding.blocks.carrier_task import carry

        for _ in rows:  # Spark takes a worker whose input was left unread for broken
            pass
        yield pa.RecordBatch.from_arrays([pa.array([carry(spec, first, wanted)])], ["served"])

    return task


def carry(spec: bytes, first: int, wanted: list[str]) -> bool:
    """Whether this task served."""
    from pyspark import TaskContext

    from ... import _native

    context = TaskContext.get()
    assert context is not None
    served = _native.run_carrier(_native.NodeSpec(spec), number=first + context.partitionId(), wanted=wanted)
    if not served:
        time.sleep(HOLD_S)
    return served
