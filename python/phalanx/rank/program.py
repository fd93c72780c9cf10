"""The training code, ready to be called, in a `__main__` like the caller's.

RANK-23 (caller-main): the training code finds in `sys.modules["__main__"]` what it would find at the caller. A file or
a module is its own `__main__`. A function's `__main__` has the caller's functions and classes that were sent along, and
its `__file__`; `inspect.getsource` finds their sources as they were at the caller.
Phalanx's entry is not in there, so plain pickle, `torch.save` and processes started by `spawn` work. In `sys.argv` a
function has its own name in the place of a program's.
"""

from __future__ import annotations

import linecache
import sys
import types
from importlib.machinery import ModuleSpec

from . import spark_files
from .payload import Payload
from .script import enter, enter_module, script_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Processes that multiprocessing spawns from a function's rank import this as their __main__.
SPAWN_MAIN = "phalanx.rank.spawn_main"


def prepare(payload: Payload, directory: str) -> Callable[[], Any]:
    """What to call to train; `sys.path`, `sys.argv` and `__main__` are set for it.

    `directory` is the rank's own.

    Raises `ModuleNotFoundError`, `PayloadError` or `OSError` with a sentence on why the training can't begin.
    """
    spark_files.enter()
    payload.extend_sys_path()
    payload.check_results()
    if payload.kind == "function":
        return _function(payload, directory)
    return _file(payload, directory) if payload.kind == "file" else _module(payload, directory)


def _function(payload: Payload, directory: str) -> Callable[[], Any]:
    # a function has no file; libraries take a name from here, for which "" is none
    sys.argv = [payload.name, *payload.arguments(directory)]
    main = _fresh_main()
    fn, args, kwargs, of_callers = call_in(vars(main), payload)
    versions = payload.other_version()
    if versions and sys.stderr is not None:
        print(f"phalanx: {versions}; one may not read what the other writes", file=sys.stderr)
    if of_callers:
        # by this spawned processes find what it has; its file, which they would run else, may not be here
        main.__spec__ = ModuleSpec(SPAWN_MAIN, None)
    return lambda: fn(*args, **kwargs)


def call_in(
    main: dict[str, Any], payload: Payload
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool]:
    """A function, its arguments, its keyword arguments, and whether there is anything of the caller's `__main__`, which
    the namespace `main` has then. Raises as `Payload.call`."""
    for file_name, text in payload.sources.items():
        # no modification time: linecache then never asks the file system, which may have another version or none
        linecache.cache[file_name] = (len(text), None, text.splitlines(keepends=True), file_name)
    fn, args, kwargs, names = payload.call()
    main.update(names)
    if payload.main_file:
        main["__file__"] = payload.main_file
    return fn, args, kwargs, bool(names or payload.main_file)


def _file(payload: Payload, directory: str) -> Callable[[], Any]:
    found = script_of(payload, directory)
    sys.path.insert(0, found.path_entry)
    sys.argv = [found.argv0, *payload.arguments(directory)]
    main = _fresh_main()
    code = enter(found, main)
    return lambda: exec(code(), vars(main))


def _module(payload: Payload, directory: str) -> Callable[[], Any]:
    """As `python -m` runs it: a package by its `__main__`; `__main__.__spec__` is the module's."""
    import importlib.util

    def spec_of(name: str) -> ModuleSpec:
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as problem:  # a parent package
            raise payload.lacks(problem.name, "run") from problem
        if spec is None:
            raise payload.lacks(name, "run")
        return spec

    if payload.folder:
        sys.path.insert(0, payload.folder)
    spec = spec_of(payload.name)
    if spec.submodule_search_locations is not None:
        spec = spec_of(f"{payload.name}.__main__")
    sys.argv = [spec.origin or payload.name, *payload.arguments(directory)]
    main = _fresh_main()
    code = enter_module(spec, main)
    return lambda: exec(code(), vars(main))


def _fresh_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__package__ = None
    vars(main)["__builtins__"] = sys.modules["builtins"]
    vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main
