"""Modules whose functions Spark sends themselves, and not their names: for hosts that lack the module, or have another.

PLUMBING-1 (until-the-last): pyspark's list of such modules is the process's and doesn't count. A module is on it until
the last of those that need it there at the same time is done.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

_lock = threading.Lock()
_needed: Counter[str] = Counter()


@contextlib.contextmanager
def by_value(module: ModuleType) -> Iterator[None]:
    """As long as this lasts pyspark pickles what is in `module`, or in one below it, by value."""
    from pyspark import cloudpickle

    with _lock:
        _needed[module.__name__] += 1
        if _needed[module.__name__] == 1:
            cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        with _lock:
            _needed[module.__name__] -= 1
            if _needed[module.__name__] == 0:
                cloudpickle.unregister_pickle_by_value(module)
