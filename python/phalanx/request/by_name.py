"""Objects that pickle leaves as a name, and what a rank makes them from where it doesn't have that name.

Of a module that ranks can import a name is right. Of the caller's `__main__` it is not: that is another program in a
rank, and what came along of the caller's is put there only after the pickle has been read. Nor is it right of a module
that goes by value.

REQUEST-6 (no-bare-name): no pickle of a call has a name that only the caller's `__main__`, or a module that goes by
value, could answer. The object goes by value, or the call is refused with the name.
"""

from __future__ import annotations

import enum
import functools
import pickle
import sys
import typing
from collections.abc import Callable
from typing import Any

import cloudpickle

from ..rank import made_anew

_CACHED = type(functools.lru_cache(lambda: None))
# Of Python 3.10 and 3.11, and the alias of 3.12.
_PARAMETERS: tuple[Any, ...] = tuple(
    getattr(typing, name) for name in ("ParamSpec", "TypeVarTuple") if hasattr(typing, name)
)
_OPTIONS = ("bound", "covariant", "contravariant", "infer_variance", "default")
_ALIAS: Any = getattr(typing, "TypeAliasType", ())


class BareName(pickle.PicklingError):
    """A name of the caller's is all that there is of an object."""


def parts_of(obj: Any, name: str) -> tuple[Any, ...] | str:
    """What pickle is to write of an object that says that it is called `name`: the name, or how to make it anew, in
    the form of `__reduce__`.

    Raises `BareName` where the ranks don't have the name, and can't make the object.
    """
    module = pickle.whichmodule(obj, name)  # type: ignore[attr-defined]  # its hints lack it
    goes_by_value = _goes_by_value(module)
    if not goes_by_value and _found(module, name) is obj:
        return name
    for kind, parts in _PARTS:
        if isinstance(obj, kind):
            return parts(obj)
    if not goes_by_value:
        return name  # pickle says what is wrong with it
    try:
        return object.__reduce__(obj)  # as if its class had not said otherwise
    except TypeError as problem:
        raise BareName(
            f"{module}.{name} can only be sent by its name, which the ranks don't have"
        ) from problem


def _goes_by_value(module: str) -> bool:
    registered = cloudpickle.list_registry_pickle_by_value()
    return module == "__main__" or any(f"{module}.".startswith(f"{parent}.") for parent in registered)


def _found(module: str, name: str) -> Any:
    return functools.reduce(
        lambda at, part: getattr(at, part, None), name.split("."), sys.modules.get(module)
    )


def _of_cached(fn: Any) -> tuple[Any, ...]:
    """Its cache stays here. Its function may lead back to it, so what it has of the function's comes afterwards."""
    attributes = {key: value for key, value in vars(fn).items() if key != "cache_parameters"}
    return made_anew.cached, (fn.__wrapped__, *fn.cache_parameters().values()), attributes


def _of_member(member: enum.Enum) -> tuple[Any, ...]:
    return type(member), (member.value,)


def _of_parameter(parameter: Any) -> tuple[Any, ...]:
    kind: Any = type(parameter)
    name = parameter.__name__
    known = [option for option in _OPTIONS if hasattr(kind(name), f"__{option}__")]
    options = {option: getattr(parameter, f"__{option}__") for option in known}
    attributes = {"__module__": parameter.__module__, **getattr(parameter, "__dict__", {})}
    return functools.partial(kind, name, **options), (), (None, attributes)


def _of_alias(alias: Any) -> tuple[Any, ...]:
    return made_anew.alias, (alias.__name__, alias.__value__, alias.__type_params__, alias.__module__)


_PARTS: tuple[tuple[Any, Callable[[Any], tuple[Any, ...]]], ...] = (
    (_CACHED, _of_cached),
    (enum.Enum, _of_member),
    (_PARAMETERS, _of_parameter),
    (_ALIAS, _of_alias),
)
