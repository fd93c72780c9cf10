"""What the ranks execute, as bytes: a function with its arguments, or a Python file or module with its own.

The first line names the format and its version. The second is a JSON header. The rest is the body: one pickle for a
function, the source for a file, and nothing for a module.

kind        `function`, `file` or `module`
name        what people call it; for a module, what is run
args        what `sys.argv` has after the program's name; an object `{"file": name, "text": text}` stands for the path
            of a file with that text, which the rank has of its own
path        where a file lies at the caller: the path that it was named by, from the root on
argv0       that path as the caller named it; absent where that is `path`
main        of a folder that is a program: the name of its main file, whose source the body is
folder      what the caller's `python FILE` or `python -m` has first on `sys.path`; absent where there is no such caller
elsewhere   the caller has no such file: it is the rank's own, at that path or among Spark's files
results     `pickle` (the default), or `json`: bytes or JSON, for callers in the JVM
python, sys_path   the caller's Python (`3.11`) and its `sys.path`; absent where the caller is not Python
sources     of a function: texts of source files, by their names at the caller
main_file   of a function with something of the caller's `__main__`: the file of that, which may not be here
cloudpickle the version that wrote a function's pickle
data        the data sets that were prepared for the run, by name: what `feeding/blocks/index.py` reads; of a
            streamed one `stream`, the address of its task's end

RANK-18 (path-first): nothing of the user's is unpickled before `extend_sys_path` was called.
RANK-19 (caller-source): every rank runs the caller's source of a file, whatever lies at that path on the rank's host.
"""

from __future__ import annotations

import json
import os
import sys

from . import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import FileFinder
    from typing import Any, BinaryIO

FORMAT = b"phalanx payload "
VERSION = 1
KINDS = ("function", "file", "module")
RESULTS = ("pickle", "json")


class PayloadError(RuntimeError):
    """A payload that this process can't read back."""


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
            self.main_file: str = fields.get("main_file", "")
            self.file_path: str = fields.get("path", "")
            self.argv0: str = fields.get("argv0", self.file_path)
            self.main: str = fields.get("main", "")
            self.folder: str = fields.get("folder", "")
            self._elsewhere: bool = fields.get("elsewhere", False)
            self._args: list[str | dict[str, str]] = fields.get("args", [])
            self.results: str = fields.get("results", "pickle")
            self._cloudpickle: str = fields.get("cloudpickle", "")
            self.data: dict[str, Any] = fields.get("data", {})
            if self.kind not in KINDS or self.results not in RESULTS:
                raise ValueError(f"kind {self.kind!r}, results {self.results!r}")
        except (ValueError, KeyError) as problem:
            raise PayloadError(f"the payload's header is damaged: {problem!r}") from problem
        if self._elsewhere:
            self.file_path = self._found()
            self.main = main_of(self.file_path)

    def arguments(self, directory: str) -> list[str]:
        """What `sys.argv` has after the program's name; the files among it are written into `directory`, the rank's.

        Raises `OSError` where one can't be written.
        """
        return [arg if isinstance(arg, str) else _written(arg, directory) for arg in self._args]

    def extend_sys_path(self) -> None:
        """Adds the caller's entries that this process's `sys.path` lacks, in the caller's order."""
        sys.path[:] = merged_path(sys.path, self.sys_path)

    def check_results(self) -> None:
        """Raises `ModuleNotFoundError` where a result could not be brought back: at the end of a training it would be
        too late."""
        import importlib.util

        if self.results == "pickle" and importlib.util.find_spec("cloudpickle") is None:
            raise self.lacks("cloudpickle", "bring back its result")

    def other_version(self) -> str:
        """How the cloudpickle of this process differs from the one that wrote the function; "" if it doesn't, or none
        has been imported."""
        here = getattr(sys.modules.get("cloudpickle"), "__version__", self._cloudpickle)
        if not self._cloudpickle or here == self._cloudpickle:
            return ""
        return f"cloudpickle is {self._cloudpickle} at the caller and {here} on {host()}"

    def source(self) -> bytes:
        """The source of a file, or of a folder's main file.

        Raises `FileNotFoundError` where neither the caller nor this host has it.
        """
        if self._elsewhere and not os.path.isfile(self.source_path):
            raise FileNotFoundError(
                f"there is no training file {self.file_path} on {host()}, and the caller has none, either"
            )
        with open(self.source_path, "rb") if self._elsewhere else self._open_body() as file:
            return file.read()

    @property
    def source_path(self) -> str:
        """Where the source is at the caller."""
        return os.path.join(self.file_path, self.main) if self.main else self.file_path

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
            versions = self.other_version()
            raise PayloadError(
                f"{self.name} can't be read back on {host()}: {type(problem).__name__}: {problem}"
                + (f"; {versions}" if versions else "")
            ) from problem
        return fn, args, kwargs, names

    def lacks(self, module: str | None, what: str) -> ModuleNotFoundError:
        """The error for a module that isn't there on this host; `what` the payload can't do without it."""
        return ModuleNotFoundError(
            f"{self.name} can't {what} on {host()}: there is no module {module!r} there; "
            "install it on the executors or ship it (spark-submit --py-files, SparkContext.addPyFile)",
            name=module,
        )

    def _found(self) -> str:
        """Where a file is that the caller hasn't: in the working directory, or where Spark has put what it shipped."""
        there = os.path.join(os.getcwd(), self.file_path)
        shipped = os.path.join(os.environ.get(contract.ENV_SPARK_FILES, ""), self.file_path)
        return os.path.abspath(shipped) if not _runs(there) and _runs(shipped) else there

    def _open_body(self) -> BinaryIO:
        file = open(self.path, "rb")  # noqa: SIM115 (the caller closes it)
        file.seek(self._body)
        return file


def folder_importer(path: str) -> FileFinder | None:
    """What finds Python's modules in a folder; None where there is no folder."""
    from importlib.machinery import (
        BYTECODE_SUFFIXES,
        SOURCE_SUFFIXES,
        FileFinder,
        SourceFileLoader,
        SourcelessFileLoader,
    )

    if not os.path.isdir(path):
        return None
    kinds = (SourceFileLoader, SOURCE_SUFFIXES), (SourcelessFileLoader, BYTECODE_SUFFIXES)
    return FileFinder(os.path.join(os.getcwd(), path), *kinds)


def main_of(path: str) -> str:
    """The name of the file that Python runs of a folder, its `__main__`; "" where there is none, or no folder."""
    importer = folder_importer(path)
    spec = None if importer is None else importer.find_spec("__main__")
    # A package of that name is found, too, and can't be run.
    return (
        ""
        if spec is None or spec.submodule_search_locations is not None
        else os.path.basename(str(spec.origin))
    )


def _runs(path: str) -> bool:
    """Whether there is a program: a file, or a folder with a `__main__`."""
    return os.path.isfile(path) or bool(main_of(path))


def _written(argument: dict[str, str], directory: str) -> str:
    folder = os.path.join(directory, "arguments")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, argument["file"])
    with open(path, "w", encoding="utf-8") as file:
        file.write(argument["text"])
    return path


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


def host() -> str:
    """This host's name, for messages."""
    import socket

    return socket.gethostname()
