"""The limit on the addresses that a process may map (RLIMIT_AS, `ulimit -v`), and what is said where it is met.

A program maps far more than it uses: torch's libraries, threads' stacks. Where there is a limit, it shows itself in
many ways, and few of them name it.
"""

from __future__ import annotations

import errno
import os
import resource

from .describe import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Spark tells its Python workers how many MiB they may map; what they start has the limit, and the variable.
FROM_SPARK = "PYSPARK_EXECUTOR_MEMORY_MB"
# The words of those that have neither a class nor a number for it: torch's allocator (ENOMEM's), the dynamic loader,
# C++, Python's threads.
_WORDS = (
    os.strerror(errno.ENOMEM),
    "failed to map segment",
    "cannot map zero-fill pages",
    "std::bad_alloc",
    "can't start new thread",
    MemoryError.__name__,
)


def limit() -> int | None:
    """How many bytes of addresses this process may map; None where there is no limit."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def is_sparks(limit: int | None, from_spark: str | None) -> bool:
    """Whether such a limit is that of Spark's Python workers, where `FROM_SPARK` has this value."""
    return limit is not None and (from_spark or "").isdigit() and int(from_spark or 0) << 20 == limit


def is_spoken_of(text: str) -> bool:
    """Whether this says that memory was refused: the words of who has neither a class nor a number for it."""
    return any(words in text for words in _WORDS)


def lacks_memory(chain: Iterable[BaseException]) -> bool:
    """Whether one of these says that memory was refused."""
    return any(map(_lacks_memory, chain))


def _lacks_memory(exc: BaseException) -> bool:
    if isinstance(exc, MemoryError) or (isinstance(exc, OSError) and exc.errno == errno.ENOMEM):
        return True
    try:
        return isinstance(exc, (ImportError, OSError, RuntimeError)) and is_spoken_of(str(exc))
    except Exception:  # its text can't be made
        return False


def words(limit: int, *, of_spark: bool) -> tuple[str, str]:
    """How large such a limit is and whose, and what to do."""
    if of_spark:
        whose = ", which spark.executor.pyspark.memory sets for Spark's Python workers and what they start"
        do = "leave that setting out, and set spark.executor.memoryOverhead instead"
    else:
        whose, do = ", `ulimit -v`", "raise it where it is set, or remove it"
    return f"may map {size(limit)} at most: RLIMIT_AS{whose}", do
