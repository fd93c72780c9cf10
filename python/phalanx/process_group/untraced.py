"""Keeps torch.compile out of the backend's own Python.

Dynamo looks into every Python frame that runs while something compiled does, also where C++ called it: DDP's reducer
calls the group, and works are waited for. A frame that holds a process group is an error then, as a group is opaque to
it.

BACKEND-16 (as-they-are): frames of this room, and what they call, run as they are.
BACKEND-17 (no-compiler): this imports nothing of Dynamo's, which takes seconds. A torch without such a way does
without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def leave_to_python(*modules: ModuleType) -> None:
    """Has Dynamo skip every function and method that these modules define."""
    skip = _skipper()
    if skip is not None:
        for module in modules:
            for function in _functions(vars(module).values(), module.__name__):
                for code in _codes(function.__code__):
                    skip(code)


def _skipper() -> Callable[[CodeType], Any] | None:
    from torch._C._dynamo import eval_frame

    frames: Any = eval_frame
    if hasattr(frames, "_FrameExecStrategy"):  # from torch 2.7 on
        skipped = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        return lambda code: frames.set_code_exec_strategy(code, skipped)
    return getattr(frames, "skip_code", None)


def _functions(values: Any, module: str) -> Iterator[FunctionType]:
    for value in values:
        if isinstance(value, property):
            yield from _functions([value.fget, value.fset], module)
        elif getattr(value, "__module__", None) != module:
            continue
        elif isinstance(value, FunctionType):
            yield value
        elif isinstance(value, type):
            yield from _functions(vars(value).values(), module)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
