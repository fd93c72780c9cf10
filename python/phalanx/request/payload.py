"""What the ranks execute, packed at the caller; the format is in `rank/payload.py`, which reads it.

REQUEST-2 (names-variable): what can't be sent is an error at the caller before anything is started. The error names the
variable.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..rank.payload import FORMAT, VERSION, main_of
from .train_object import name_of


class FileArgument(NamedTuple):
    """An argument that is the path of a file with this text; every rank has the file in its own directory."""

    name: str
    text: str


def function_payload(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    sys_path: Sequence[str],
    argv: Sequence[str | FileArgument] = (),
) -> bytes:
    """`fn(*args, **kwargs)` as bytes.

    Functions and classes of `__main__` (a notebook, a script) go by value, those of modules by name.
    `sys_path` is the caller's `sys.path`; `argv` what ranks have in `sys.argv` after the program's name.

    Raises `UnpicklableError` (a `TypeError` and a `pickle.PicklingError`) that names the variable at fault.
    """
    from .pickling import (
        pickled_call,  # with cloudpickle: milliseconds that an import of phalanx doesn't cost
    )

    call = pickled_call(fn, args, kwargs)
    header: dict[str, Any] = {"kind": "function", "name": name_of(fn), "args": _plain(argv)}
    header |= {"cloudpickle": call.cloudpickle, "sources": call.sources, "main_file": call.main_file}
    return _written(header, sys_path, call.body)


def file_payload(
    path: str | os.PathLike[str],
    args: Sequence[Any],
    *,
    sys_path: Sequence[str],
    elsewhere: bool = False,
) -> bytes:
    """The Python file at `path` with its arguments, each as `str(argument)`, and its source, as bytes; of a folder
    with a `__main__` the source of that, and of what is `elsewhere` the path alone.

    Raises `OSError` where the file can't be read.
    """
    path = os.fsdecode(path)
    header = {"kind": "file", "name": name_of(path), "path": path, "args": _plain(args)}
    if elsewhere:
        return _written(header | {"elsewhere": True}, sys_path, b"")
    main = main_of(path)
    with open(os.path.join(path, main) if main else path, "rb") as file:
        source = file.read()
    # Neither of them is normalized: behind a link to a folder `..` is that folder's parent.
    header |= {"path": os.path.join(os.getcwd(), path), "argv0": path}
    header |= {"main": main} if main else {"folder": os.path.dirname(os.path.realpath(path))}
    return _written(header, sys_path, source)


def module_payload(
    name: str, args: Sequence[Any], *, sys_path: Sequence[str] = (), folder: str = ""
) -> bytes:
    """The Python module of this name with its arguments, each as `str(argument)`, as bytes. The ranks have `folder`
    first on their path, as `python -m` has the working directory.

    Without the caller's `sys_path` it is what the ranks' Python or Spark's files have by that name.
    """
    header: dict[str, Any] = {"kind": "module", "name": name, "args": _plain(args)}
    return _written(header | ({"folder": folder} if folder else {}), sys_path, b"")


class Payload:
    """What the ranks execute, as long as the run needs it: whoever keeps the run, or what a failure's traceback holds,
    keeps none of it once it was let go of."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        """As `function_payload` and the others make it."""
        self._again: Callable[[], Mapping[str, Any]] | None = None

    def carry(self, data: Mapping[str, Any], again: Callable[[], Mapping[str, Any]]) -> None:
        """Adds the packed indexes of data sets, by name; `again` makes those for a later attempt."""
        self.packed, self._again = with_data(self.packed, data), again

    def renew(self) -> None:
        """Makes it that of a later attempt."""
        if self._again is not None:
            self.packed = with_data(self.packed, self._again())

    def forget(self) -> None:
        """Lets go of it."""
        self.packed, self._again = b"", None


def with_data(payload: bytes, data: Mapping[str, Any]) -> bytes:
    """The same payload for a run with these data sets, by name: their packed indexes."""
    first, header, body = payload.split(b"\n", 2)
    return b"\n".join([first, json.dumps({**json.loads(header), "data": data}).encode(), body])


def with_stream(payload: bytes, name: str, address: str) -> bytes:
    """The same payload for ranks that have the streamed data set `name` from `address` on their host."""
    return with_data(payload, {**json.loads(payload.split(b"\n", 2)[1])["data"], name: {"stream": address}})


def _plain(args: Sequence[Any]) -> list[str | dict[str, str]]:
    return [
        {"file": arg.name, "text": arg.text} if isinstance(arg, FileArgument) else str(arg) for arg in args
    ]


def _written(header: dict[str, Any], sys_path: Sequence[str], body: bytes) -> bytes:
    header["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    # "" and relative entries mean the caller's working directory, which is not the ranks'
    header["sys_path"] = list(dict.fromkeys(os.path.abspath(p) for p in sys_path if isinstance(p, str)))
    return b"".join([FORMAT, b"%d\n" % VERSION, json.dumps(header).encode(), b"\n", body])
