"""Tells torch of the `phalanx` backend, at the moment when torch.distributed is imported.

REG-1: importing this imports nothing, neither torch nor the native module: what a backend needs is imported when a
process group is made. REG-2: a rank that has `phalanx` on its path finds the backend, whether or not the package is
installed: torch's entry points (`torch.backends`) need an installed one, the hook on the import doesn't. REG-3:
nothing here makes an import of torch fail.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

NAME = "phalanx"

# Where torch keeps its backends, since torch 1.
_MODULE = "torch.distributed.distributed_c10d"


def install() -> None:
    """Registers the backend now if torch.distributed is there, else as soon as it is. Any number of times."""
    module = sys.modules.get(_MODULE)
    if module is not None and hasattr(module, "Backend"):
        _register(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register(module: Any) -> None:
    backend = module.Backend
    if NAME in getattr(backend, "backend_list", ()):
        return
    backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    _open_monitored_barrier(module)


def _create(options: Any, backend_options: Any = None) -> Any:
    from .backend import create

    return create(options, backend_options)


def _open_monitored_barrier(module: Any) -> None:
    """torch refuses `monitored_barrier` to every backend but gloo, by name; groups of ours bring their own."""
    torchs = module.monitored_barrier

    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        backend = None if module._rank_not_in_group(group) else _backend_of(module, group)
        if backend is None:
            torchs(group, timeout, wait_all_ranks)
        else:
            backend.monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.__doc__ = torchs.__doc__
    module.monitored_barrier = monitored_barrier
    package = sys.modules.get("torch.distributed")
    if getattr(package, "monitored_barrier", None) is torchs:
        package.monitored_barrier = monitored_barrier  # type: ignore[union-attr]


def _backend_of(module: Any, group: Any) -> Any:
    """Our backend of a group's CPU tensors, if it has one."""
    try:
        backend = (group or module._get_default_group())._get_backend(module.torch.device("cpu"))
    except RuntimeError:
        return None
    name = getattr(backend, "getBackendName", None)
    return backend if name is not None and name() == NAME else None


class _Finder:
    """Finds torch's module where everybody does, and registers the backend once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """A module's own loader, but for what is done at the end."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            _register(module)
        except Exception as problem:  # REG-3: a torch that isn't as we know it works without this backend
            import warnings

            warnings.warn(f"the backend {NAME!r} could not be registered: {problem!r}", stacklevel=2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
