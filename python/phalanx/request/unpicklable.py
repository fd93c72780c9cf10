"""Why a call can't be sent to the ranks: which of its variables doesn't pickle.

It is found by trying the pieces, from the call down: closure, globals, defaults, arguments, then the attributes and
items of the piece that fails. This costs time only when there is an error to explain.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..plumbing.describe import describe_type, lives_in_driver
from .by_name import BareName
from .train_object import name_of

# The search stops here and blames what it has got down to: a list of a million items isn't tried item by
# item.
MAX_TRIES = 2000


def explain(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    problem: Exception,
    pickle: Callable[[Any], None],
) -> str:
    """One sentence on why `fn(*args, **kwargs)` doesn't pickle; `problem` is what the pickler said, and `pickle` what
    tries a piece."""
    name = name_of(fn)
    found = _Search(pickle).worst(_call_pieces(fn, args, kwargs))
    if found is None:
        return f"{name} can't be sent to the ranks: {problem}"
    labels, culprit, problem = found
    subject = f"{name} can't be sent to the ranks: its {', '.join(labels)} ({describe_type(culprit)})"
    if lives_in_driver(culprit):
        return (
            f"{subject} lives in the driver and can't go to the ranks; "
            f"take from it what {name} needs and pass that, or read the data inside {name}"
        )
    why = f": {problem}" if isinstance(problem, BareName) else ""
    return f"{subject} doesn't pickle{why}; make it inside {name} or pass what it is made from"


class _Search:
    def __init__(self, pickle: Callable[[Any], None]) -> None:
        self.pickle = pickle
        self.tries = 0
        self.seen: set[int] = set()

    def worst(self, pieces: Iterator[tuple[str, Any]]) -> tuple[list[str], Any, Exception] | None:
        """The deepest piece that fails, with the labels that lead to it, and its failure."""
        for label, piece in pieces:
            if id(piece) in self.seen:
                continue
            problem = self.problem_of(piece)
            if problem is None:
                continue
            self.seen.add(id(piece))
            deeper = None if lives_in_driver(piece) else self.worst(_pieces(piece))
            if deeper is None:
                return [label], piece, problem
            # a function that another one calls is only the way to the culprit
            return [label, *deeper[0]], *deeper[1:]
        return None

    def problem_of(self, value: Any) -> Exception | None:
        self.tries += 1
        if self.tries > MAX_TRIES:
            return None
        try:
            self.pickle(value)
        except Exception as problem:
            return problem
        return None


def _call_pieces(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    yield from _pieces(fn)
    try:
        names = list(inspect.signature(fn).bind_partial(*args).arguments.items())
    except (TypeError, ValueError):
        names = []
    positional = [n for n, _ in names[: len(args)]]
    for i, value in enumerate(args):
        # *args gathers several under one name: only a name that stands for this very value is told
        known = i < len(positional) and names[i][1] is value
        yield f"argument {positional[i]!r}" if known else f"argument number {i + 1}", value
    for key, value in kwargs.items():
        yield f"argument {key!r}", value


def _pieces(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        yield from _function_pieces(value)
    elif isinstance(value, types.MethodType):
        yield "object", value.__self__
        yield "function", value.__func__
    elif isinstance(value, functools.partial):
        yield "function", value.func
        for i, item in enumerate(value.args):
            yield f"argument number {i + 1}", item
        for key, item in value.keywords.items():
            yield f"argument {key!r}", item
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"key {key!r}", key
            yield f"item {key!r}", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for i, item in enumerate(value):
            yield f"item {i}", item
    elif isinstance(value, type):
        for key, item in list(vars(value).items()):
            yield f"attribute {key!r}", item
    else:
        yield from ((f"attribute {key!r}", item) for key, item in _attributes(value))


def _function_pieces(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = fn.__code__
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=False):
        try:
            yield f"variable {name!r}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in sorted(_names_used(code) & fn.__globals__.keys()):
        yield f"global variable {name!r}", fn.__globals__[name]
    with_default = code.co_varnames[: code.co_argcount][-len(fn.__defaults__ or ()) :]
    for name, value in zip(with_default, fn.__defaults__ or (), strict=False):
        yield f"default of argument {name!r}", value
    for name, value in (fn.__kwdefaults__ or {}).items():
        yield f"default of argument {name!r}", value
    with contextlib.suppress(Exception):  # since Python 3.14 code computes them
        yield from [(f"annotation of {name!r}", value) for name, value in fn.__annotations__.items()]
    for name, value in vars(fn).items():
        yield f"attribute {name!r}", value


def _names_used(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_used(constant)
    return names


def _attributes(value: Any) -> list[tuple[str, Any]]:
    try:
        attributes = list(vars(value).items())
    except TypeError:
        attributes = []
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                attributes.append((name, getattr(value, name)))
    return attributes
