"""What the doctor says of one thing, and what the run that it is asked about needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["ok", "warning", "error"]
Facts = dict[str, Any]
"""What one task found on its host; `probe.py` and `task.py` say what is in it."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    level   `error`: a run fails, or loses what it promises. `warning`: it runs, and is slow, or fails later. `ok`
    host    where, by Spark's name of it; "driver", or "" for the cluster as a whole
    check   what was looked at, in a word or two
    means   what was found, and what that means for a run
    do      what to set or to do; "" where there is nothing
    """

    level: Level
    host: str
    check: str
    means: str
    do: str = ""


@dataclass(frozen=True)
class Need:
    """What the run needs, as far as hosts are judged by it."""

    processes: int
    use_gpu: bool
    jvm: bool = False
    """Whether its ranks are started by executors' JVMs, which bring Phalanx along."""
    connect: bool = False
    """Whether its caller is a client of Spark Connect."""
    other_way: bool = False
    """Whether its nodes have another way to the driver: through Spark, by the plugin."""
    heap: int = 0
    """Bytes of an executor's heap."""
    overhead: int | None = None
    """Bytes of an executor's container beside its heap, where the cluster manager keeps executors to that."""
    executor_ranks: int = 1
    """How many ranks an executor can have."""


def whole(names: Sequence[str]) -> str:
    """`a, b and c`; of many the first."""
    if len(names) > 6:
        return f"{', '.join(names[:5])} and {len(names) - 5} others"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def or_ok(found: Iterable[Finding], check: str, means: Callable[[], str]) -> Iterator[Finding]:
    """What was found, or where that is nothing, that all is well; only then is `means` asked for."""
    some = False
    for finding in found:
        some = True
        yield finding
    if not some:
        yield Finding("ok", "", check, means())
