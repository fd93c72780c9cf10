"""A call as one pickle, with what a rank needs to know of the caller's `__main__`.

Beside cloudpickle's work this collects two things on the way: the functions and classes of `__main__` that
went along, by name, so that the rank's own `__main__` has them (plain pickle, `torch.save` and spawned
DataLoader workers look them up there); and the source text of functions that went by value, so that
tracebacks and `inspect.getsource` have it on hosts that lack the file.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from ..errors import UnpicklableError
from .unpicklable import explain

# A source file larger than this is generated code; its text is worth less than the time to ship it.
MAX_SOURCE_CHARS = 1 << 20

# cloudpickle's list of modules is the process's.
_registering = threading.RLock()


def pickled_call(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[bytes, dict[str, str], str]:
    """The pickle of `(fn, args, kwargs, names of __main__)`, source texts by file name, and the version of cloudpickle.

    Raises `UnpicklableError` that names the variable at fault.
    """
    buffer = io.BytesIO()
    pickler = CallPickler(buffer)
    with _pysparks_modules():
        try:
            # The names come last: the dictionary is complete when the pickler gets to it.
            pickler.dump((fn, tuple(args), dict(kwargs), pickler.names))
        except Exception as problem:
            raise UnpicklableError(explain(fn, args, kwargs, problem)) from problem
    return buffer.getvalue(), pickler.sources, cloudpickle.__version__


@contextlib.contextmanager
def _pysparks_modules() -> Iterator[None]:
    """What `pyspark.cloudpickle.register_pickle_by_value` was given goes by value here, too: pyspark has a cloudpickle
    of its own, with a list of its own."""
    pysparks = sys.modules.get("pyspark.cloudpickle.cloudpickle")
    with _registering, contextlib.ExitStack() as stack:
        if pysparks is not None:
            for name in (
                pysparks.list_registry_pickle_by_value() - cloudpickle.list_registry_pickle_by_value()
            ):
                if name in sys.modules:
                    cloudpickle.register_pickle_by_value(sys.modules[name])
                    stack.callback(cloudpickle.unregister_pickle_by_value, sys.modules[name])
        yield


class CallPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no type hints
    """cloudpickle's pickler that notes names and sources as it goes."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.names: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, (types.FunctionType, type)) and obj.__module__ == "__main__":
            name = obj.__qualname__
            if vars(sys.modules["__main__"]).get(name) is obj:
                self.names[name] = obj
        if isinstance(obj, types.FunctionType) and reduced is not NotImplemented:  # by value
            file_name = obj.__code__.co_filename
            if file_name not in self.sources:
                text = "".join(linecache.getlines(file_name))
                if len(text) <= MAX_SOURCE_CHARS:
                    self.sources[file_name] = text
        return reduced
