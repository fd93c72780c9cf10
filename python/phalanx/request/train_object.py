"""What is given to `run`: a function, the path of a Python file, or a module by its name."""

from __future__ import annotations

import os
from typing import NamedTuple


class Module(NamedTuple):
    """A Python module that ranks run as `python -m` does; the caller needs neither it nor the ranks' Python."""

    name: str
    run_name: str
    """What people call the run, and what its checkpoints are called: `trainer.task` is everybody's."""


def text_of(path: str) -> str:
    """A path as people read it, and Rust and Java take it: it can have bytes that are no text."""
    return path.encode(errors="backslashreplace").decode()


def name_of(train_object: object) -> str:
    """What people call it: a file's or a function's name, that of what a partial wraps, or of the class; of a module
    what its run is called."""
    if isinstance(train_object, Module):
        return train_object.run_name
    if isinstance(train_object, (str, os.PathLike)):
        # Of a folder, `.` and `folder/` are names, too.
        return text_of(os.path.basename(os.path.abspath(os.fsdecode(train_object))))
    while not hasattr(train_object, "__name__") and hasattr(train_object, "func"):
        train_object = train_object.func
    return str(getattr(train_object, "__name__", type(train_object).__name__))
