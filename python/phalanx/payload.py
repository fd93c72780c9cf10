"""What the ranks execute, as bytes: a function with its arguments, or a Python file or module with its own.

The first line names the format and its version, the second is a JSON header, the rest is the body: for a
function one pickle, for a file its source, for a module nothing.

kind        `function`, `file` or `module`
name        what people call it; for a module, what is run
args        a file's or module's arguments; `path`: where the file lies at the caller
results     `pickle` (the default), or `json`: bytes or JSON, for callers in the JVM
python, sys_path   the caller's Python (`3.11`) and its `sys.path`; absent where the caller is not Python

PAY-1: whatever can't be sent is an error at the caller that names the variable, before anything is started.
PAY-2: nothing of the user's is unpickled before `extend_sys_path` was called.
PAY-3: every rank runs the caller's source of a file, whatever lies at that path on its own host.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, BinaryIO

FORMAT = b"phalanx payload "
VERSION = 1
KINDS = ("function", "file", "module")
RESULTS = ("pickle", "json")


class PayloadError(RuntimeError):
    """A payload that this process can't read back."""


def function_payload(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    sys_path: Sequence[str],
) -> bytes:
    """`fn(*args, **kwargs)` as bytes.

    Functions and classes of `__main__` (a notebook, a script) go by value, those of modules by name.
    `sys_path` is the caller's `sys.path`.

    Raises `UnpicklableError` (a `TypeError` and a `pickle.PicklingError`) that names the variable at fault.
    """
    from .pickling import pickled_call

    body, sources = pickled_call(fn, args, kwargs)
    header = {"kind": "function", "name": name_of(fn), "sources": sources}
    return _written(header, sys_path, body)


def file_payload(path: str | os.PathLike[str], args: Sequence[Any], *, sys_path: Sequence[str]) -> bytes:
    """The Python file at `path` with its arguments, each as `str(argument)`, and its source, as bytes.

    Raises `OSError` where the file can't be read.
    """
    path = os.path.abspath(os.fspath(path))
    with open(path, "rb") as file:
        source = file.read()
    header = {"kind": "file", "name": os.path.basename(path), "path": path, "args": [str(a) for a in args]}
    return _written(header, sys_path, source)


class Payload:
    """A payload file, opened: the header is read, the body is not yet.

    Raises `PayloadError` where `path` holds no payload of this version, `OSError` where it can't be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            first, header = file.readline(100), file.readline()
            self._body = file.tell()
        if first != FORMAT + b"%d\n" % VERSION:
            raise PayloadError(
                f"this Phalanx reads payloads of version {VERSION}, not {first[:40]!r}: "
                "the driver and the executors have different versions of Phalanx"
            )
        try:
            fields = json.loads(header)
            self.kind: str = fields["kind"]
            self.name: str = fields["name"]
            # byte code needs its Python; a file's or a module's caller may not be Python at all
            self.python: str = fields["python"] if self.kind == "function" else fields.get("python", "")
            self.sys_path: list[str] = fields.get("sys_path", [])
            self.sources: dict[str, str] = fields.get("sources", {})
            self.file_path: str = fields.get("path", "")
            self.file_args: list[str] = fields.get("args", [])
            self.results: str = fields.get("results", "pickle")
            if self.kind not in KINDS or self.results not in RESULTS:
                raise ValueError(f"kind {self.kind!r}, results {self.results!r}")
        except (ValueError, KeyError) as problem:
            raise PayloadError(f"the payload's header is damaged: {problem!r}") from problem

    def extend_sys_path(self) -> None:
        """Adds the caller's entries that this process's `sys.path` lacks, in the caller's order."""
        sys.path[:] = merged_path(sys.path, self.sys_path)

    def source(self) -> bytes:
        """A file's source."""
        with self._open_body() as file:
            return file.read()

    def call(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        """A function, its arguments, its keyword arguments, and what came along of the caller's `__main__`.

        Raises `ModuleNotFoundError` or `PayloadError` with a sentence that names the host and what is
        missing.
        """
        import pickle

        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        if self.python != here:
            # by value means byte code, and that changes with every minor version: reading it crashes the
            # interpreter
            raise PayloadError(
                f"{self.name} was sent by Python {self.python} and can't be read by Python {here} "
                f"on {host()}; use the same Python on driver and executors (PYSPARK_PYTHON), or run a file"
            )
        try:
            with self._open_body() as file:
                fn, args, kwargs, names = pickle.load(file)
        except ModuleNotFoundError as problem:
            raise self.lacks(problem.name, "be read back") from problem
        except Exception as problem:
            raise PayloadError(
                f"{self.name} can't be read back on {host()}: {type(problem).__name__}: {problem}"
            ) from problem
        return fn, args, kwargs, names

    def lacks(self, module: str | None, what: str) -> ModuleNotFoundError:
        """The error for a module that isn't there on this host; `what` the payload can't do without it."""
        return ModuleNotFoundError(
            f"{self.name} can't {what} on {host()}: there is no module {module!r} there; "
            "install it on the executors or ship it (spark-submit --py-files, SparkContext.addPyFile)",
            name=module,
        )

    def _open_body(self) -> BinaryIO:
        file = open(self.path, "rb")  # noqa: SIM115 (the caller closes it)
        file.seek(self._body)
        return file


def name_of(train_object: object) -> str:
    """What people call it: a file's or a function's name, that of what a partial wraps, or of the class."""
    if isinstance(train_object, (str, os.PathLike)):
        return os.path.basename(os.fspath(train_object))
    while not hasattr(train_object, "__name__") and hasattr(train_object, "func"):
        train_object = train_object.func
    return str(getattr(train_object, "__name__", type(train_object).__name__))


def merged_path(own: Sequence[str], callers: Sequence[str]) -> list[str]:
    """`own` with the entries of `callers` that it lacks, each before the entry that follows it at the caller.

    What shadows what at the caller then does so here, too: a project's `datasets` folder before the installed
    package of that name. Entries of `own` keep their order.
    """
    merged = list(own)
    at = len(merged)
    for entry in reversed(callers):
        if entry in merged:
            at = merged.index(entry)
        else:
            merged.insert(at, entry)
    return merged


def _written(header: dict[str, Any], sys_path: Sequence[str], body: bytes) -> bytes:
    header["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    # "" and relative entries mean the caller's working directory, which is not the ranks'
    header["sys_path"] = list(dict.fromkeys(os.path.abspath(p) for p in sys_path if isinstance(p, str)))
    return b"".join([FORMAT, b"%d\n" % VERSION, json.dumps(header).encode(), b"\n", body])


def host() -> str:
    """This host's name, for messages."""
    import socket

    return socket.gethostname()
