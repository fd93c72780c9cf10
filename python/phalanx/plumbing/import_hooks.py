"""Does something with a module as soon as it has been imported, whoever imports it.

PLUMBING-2 (no-cost): waiting for an import costs nothing and imports nothing.
PLUMBING-3 (same-module): the module is found and loaded as it would be without the hook.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Action = Callable[[ModuleType], None]


def after_import(names: Collection[str], action: Action) -> None:
    """Has `action` done with each module of these names once it is loaded; those that are loaded already are not told.

    What `action` raises goes to whoever imports. The same action is waited with once.
    """
    if not any(isinstance(finder, _Finder) and finder.action == action for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(names, action))


class _Finder:
    """Finds modules where everybody does, and has the action done at the end of their loading."""

    def __init__(self, names: Collection[str], action: Action) -> None:
        self._names = names
        self.action = action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self.action)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """A module's own loader, but for what is done at the end."""

    def __init__(self, loader: Any, action: Action) -> None:
        self._loader = loader
        self._action = action

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
