"""A call as one pickle, with what a rank needs to know of the caller's `__main__`.

Beside cloudpickle's work this sends by value what pickle would leave as a name of `__main__` (`by_name.py`), and a
broadcast of Spark's, which only Spark's own workers have. It collects two things on the way: what went along of
`__main__` and pickles by its name there, so that the rank's own `__main__` has it (plain pickle, `torch.save` and
spawned DataLoader workers look it up there); and the source text of what went by value, so that tracebacks and
`inspect.getsource` have it on hosts that lack the file. A function knows its file. A class has that of its module, so
the file of `__main__` goes along by name, too.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

from ..errors import UnpicklableError
from ..plumbing.broadcast import BroadcastValue
from ..plumbing.describe import lives_in_driver
from .by_name import parts_of
from .unpicklable import explain

# A source file larger than this is generated code; its text is worth less than the time to ship it.
MAX_SOURCE_CHARS = 1 << 20

_PLAIN: tuple[Any, Any] = (object.__reduce_ex__, object.__reduce__)

# cloudpickle's list of modules is the process's.
_registering = threading.RLock()


class PickledCall(NamedTuple):
    """A call as it travels."""

    body: bytes
    """The pickle of `(fn, args, kwargs, names of __main__)`."""
    sources: dict[str, str]
    """Texts by file name."""
    main_file: str
    """The file of `__main__`, where something of that went along; "" where it has none."""
    cloudpickle: str
    """The version that wrote the pickle."""


def pickled_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> PickledCall:
    """Raises `UnpicklableError` that names the variable at fault."""
    buffer = io.BytesIO()
    pickler = CallPickler(buffer)
    with _pysparks_modules():
        try:
            # The names come last: the dictionary is complete when the pickler gets to it.
            pickler.dump((fn, tuple(args), dict(kwargs), pickler.names))
        except Exception as problem:
            raise UnpicklableError(explain(fn, args, kwargs, problem, _try)) from problem
    return PickledCall(buffer.getvalue(), pickler.sources, pickler.main_file, cloudpickle.__version__)


def _try(value: object) -> None:
    """Raises where a value doesn't pickle."""
    CallPickler(io.BytesIO()).dump(value)


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
    """cloudpickle's pickler that notes names and sources as it goes, and writes no name that ranks don't have."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.names: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.main_file = ""
        self._plain: set[type] = set()

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, (types.FunctionType, type)):
            self._note(obj, obj.__qualname__)
            if obj.__module__ == "__main__":
                self._keep_main()
            if reduced is not NotImplemented:  # by value
                if isinstance(obj, types.FunctionType):
                    self._keep_source(obj.__code__.co_filename, obj.__globals__)
                elif len(reduced) == 6 and obj.__qualname__ != obj.__name__:
                    # cloudpickle leaves it out, and `inspect.getsource` finds a class within another by it.
                    reduced[2][0]["__qualname__"] = obj.__qualname__
        elif reduced is NotImplemented and type(obj) not in self._plain:
            reduced = self._reduced(obj)
        return reduced

    def _reduced(self, obj: Any) -> Any:
        """What pickle would write of an object, but for a name that the ranks don't have."""
        kind = type(obj)
        reducer = self.dispatch_table.get(kind)
        if kind.__name__ == "Broadcast" and lives_in_driver(obj):
            reduced = BroadcastValue, (obj.value,)
        elif reducer is not None:
            reduced = reducer(obj)
        elif (kind.__reduce_ex__, kind.__reduce__) == _PLAIN:
            self._plain.add(kind)  # most objects: never a name
            return NotImplemented
        else:
            reduced = obj.__reduce_ex__(cloudpickle.DEFAULT_PROTOCOL)
        if isinstance(reduced, str):
            self._note(obj, reduced)
            reduced = parts_of(obj, reduced)
        return reduced

    def _note(self, obj: Any, name: str) -> None:
        if getattr(obj, "__module__", None) == "__main__" and vars(sys.modules["__main__"]).get(name) is obj:
            self.names[name] = obj

    def _keep_main(self) -> None:
        space = vars(sys.modules["__main__"])
        file_name = space.get("__file__")
        if isinstance(file_name, str):
            self.main_file = file_name
            self._keep_source(file_name, space)

    def _keep_source(self, file_name: str, space: dict[str, Any]) -> None:
        """`space` is the module's, whose loader has the text where no file has it."""
        if file_name not in self.sources:
            text = "".join(linecache.getlines(file_name, space))
            if len(text) <= MAX_SOURCE_CHARS:
                self.sources[file_name] = text
