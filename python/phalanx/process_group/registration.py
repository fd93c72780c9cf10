"""Tells torch of the `phalanx` backend, at the moment when torch.distributed is imported.

BACKEND-11 (no-import): importing this module imports neither torch nor the native module. What a backend needs is
imported when a process group is made.
BACKEND-12 (uninstalled-too): a rank that has `phalanx` on its path finds the backend, even if the package is not
installed. torch's entry points (`torch.backends`) need an installed package; the hook on the import doesn't.
BACKEND-13 (never-fails): nothing here makes an import of torch fail.
"""

from __future__ import annotations

import sys

from ..plumbing.import_hooks import after_import
from . import NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# Where torch keeps its backends, since torch 1.
_MODULE = "torch.distributed.distributed_c10d"


def install() -> None:
    """Registers the backend now if torch.distributed is there, else as soon as it is. Any number of times."""
    module = sys.modules.get(_MODULE)
    if module is not None and hasattr(module, "Backend"):
        _register(module)
    else:
        after_import((_MODULE,), _register_if_known)


def _register_if_known(module: ModuleType) -> None:
    try:
        _register(module)
    except Exception as problem:  # BACKEND-13: a torch that isn't as we know it works without this backend
        import warnings

        warnings.warn(f"the backend {NAME!r} could not be registered: {problem!r}", stacklevel=2)


def _register(module: Any) -> None:
    backend = module.Backend
    if NAME in getattr(backend, "backend_list", ()):
        return
    backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    from . import plain_groups

    plain_groups.guard(module)
    _open_monitored_barrier(module)


def _create(options: Any, backend_options: Any = None) -> Any:
    from .group import create

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
