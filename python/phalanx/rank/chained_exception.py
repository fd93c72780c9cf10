"""An exception that travels from a rank to the driver with its causes."""

from __future__ import annotations

import pickle
from typing import Any


class ChainedException:
    """Pickles as its exception, but with `__cause__`, `__context__` and `__suppress_context__`.

    Exceptions themselves leave these behind when they are pickled. A link that doesn't pickle ends the chain
    there.
    """

    MAX_LINKS = 10

    def __init__(self, exc: BaseException, links: int = MAX_LINKS) -> None:
        self.exc = exc
        self.links = links

    def __reduce__(self) -> tuple[Any, ...]:
        def link(exc: BaseException | None) -> ChainedException | None:
            if exc is None or self.links == 0 or not _pickles(exc):
                return None
            return ChainedException(exc, self.links - 1)

        exc = self.exc
        return rejoined, (exc, link(exc.__cause__), link(exc.__context__), exc.__suppress_context__)


def rejoined(
    exc: BaseException, cause: BaseException | None, context: BaseException | None, suppress: bool
) -> BaseException:
    """The exception with its chain again; what `ChainedException` unpickles by."""
    exc.__cause__, exc.__context__, exc.__suppress_context__ = cause, context, suppress
    return exc


def _pickles(exc: BaseException) -> bool:
    import cloudpickle

    try:
        return isinstance(pickle.loads(cloudpickle.dumps(exc)), BaseException)
    except Exception:
        return False
