"""What the pickle of a call makes objects with that pickle by itself would leave as a name of the caller's."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def cached(fn: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """`fn` with an empty cache."""
    return functools.lru_cache(maxsize, typed)(fn)


def alias(name: str, value: object, parameters: tuple[Any, ...], module: str) -> Any:
    """What `type name = value` makes in this module, since Python 3.12."""
    import typing

    # The class takes the name of the module from the code that calls it.
    space = {"__name__": module, "make": getattr(typing, "TypeAliasType"), "given": (name, value, parameters)}  # noqa: B009
    return eval("make(given[0], given[1], type_params=given[2])", space)
