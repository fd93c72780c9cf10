"""What `python FILE` gives a program, for the training file of a payload.

RANK-37 (as-python): a training file finds in `sys.path[0]`, `sys.argv` and its `__main__` what `python FILE` would give
it. FILE is the path that the caller named, where that leads from the rank's working directory to the caller's file;
else the same path made absolute; and where this host lacks the file, the path of the rank's own copy. As for Python, it
may be source, byte code, or a zip file or folder with a `__main__` in it. Of a folder that this host lacks the copy has
the `__main__` alone.
"""

from __future__ import annotations

import contextlib
import os
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from typing import NamedTuple
from zipimport import ZipImportError, zipimporter

from .payload import Payload, PayloadError, folder_importer, host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import FileFinder, ModuleSpec
    from types import CodeType, ModuleType

    Code = Callable[[], CodeType]


class Script(NamedTuple):
    """A training file as it lies on this host."""

    argv0: str
    path: str
    """From the root on, and otherwise as it was named: with its dots and links, as Python has it in `__file__`."""
    path_entry: str
    """What is first on its `sys.path`."""
    source: bytes
    importer: FileFinder | zipimporter | None
    """What finds the `__main__` of a folder or a zip file, which is the program."""


def script_of(payload: Payload, directory: str) -> Script:
    """The training file of a payload; one that this host lacks is written into `directory`, the rank's own.

    Raises `OSError` where it can't be read or written.
    """
    source, path, argv0 = payload.source(), payload.file_path, payload.argv0
    if _holds(payload.source_path, source):
        folder = path if payload.main else os.path.dirname(os.path.realpath(path))
        if os.path.join(os.getcwd(), argv0) != path:
            argv0 = path
    else:
        # the caller's file is not on this host, or another version of it
        own = os.path.join(directory, "script")
        callers = path if payload.main else payload.folder or os.path.dirname(path)
        argv0 = path = os.path.join(own, os.path.basename(os.path.abspath(path)))
        if payload.main:
            own = path
        os.makedirs(own, exist_ok=True)
        folder = callers if os.path.isdir(callers) else own
        with open(os.path.join(path, payload.main) if payload.main else path, "wb") as file:
            file.write(source)
    importer: FileFinder | zipimporter | None = folder_importer(path)
    if importer is None:
        with contextlib.suppress(ZipImportError):
            importer, folder = zipimporter(path), path
    return Script(argv0, path, folder, source, importer)


def enter(script: Script, main: ModuleType) -> Code:
    """Makes this module the script's `__main__`; what gives its code, or raises what Python says of such a file.

    Raises `PayloadError` for a zip file or a folder that is no program.
    """
    if script.importer is not None:
        spec = script.importer.find_spec("__main__")
        if spec is None:
            name = os.path.basename(script.path)
            what = "zip file" if isinstance(script.importer, zipimporter) else "directory"
            raise PayloadError(f"{name} can't run on {host()}: it is a {what} without a __main__")
        if not isinstance(spec.loader, SourceFileLoader) or script.source.startswith(MAGIC_NUMBER):
            return enter_module(spec, main)
        _name(spec, main)
        # Byte code that this host has beside it may be of another source.
        return lambda: compile(script.source, str(spec.origin), "exec", dont_inherit=True)
    main.__file__ = script.path
    vars(main)["__cached__"] = None
    if script.path.endswith(".pyc") or script.source.startswith(MAGIC_NUMBER):
        loader = main.__loader__ = SourcelessFileLoader("__main__", script.path)
        return lambda: loader.get_code("__main__")  # type: ignore[return-value]  # it raises where there is none
    main.__loader__ = SourceFileLoader("__main__", script.path)
    return lambda: compile(script.source, script.path, "exec", dont_inherit=True)


def enter_module(spec: ModuleSpec, main: ModuleType) -> Code:
    """Makes this module the `__main__` that `python -m` would make of what `spec` says; what gives its code.

    Raises `PayloadError` where that is no Python module.
    """
    loader = spec.loader
    get_code = getattr(loader, "get_code", lambda _: None)
    code: CodeType | None = get_code(spec.name)
    if code is None:
        raise PayloadError(f"{spec.name} can't run on {host()}: it is no Python module ({spec.origin})")
    _name(spec, main)
    return lambda: code


def _name(spec: ModuleSpec, main: ModuleType) -> None:
    main.__spec__ = spec
    main.__loader__ = spec.loader
    main.__package__ = spec.parent
    if spec.has_location:
        main.__file__ = spec.origin
        vars(main)["__cached__"] = spec.cached


def _holds(path: str, source: bytes) -> bool:
    """Whether a file has this source. What is no file, such as a pipe, would have to be waited for."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(source) + 1) == source
    except OSError:
        return False
