"""Where Phalanx and Python are on the machine of a node in Python."""

from __future__ import annotations

import os
import sys
from typing import TypedDict

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Home(TypedDict):
    """What `_native.run_node` is told of this machine."""

    guard: str
    package: str
    python: str


def home() -> Home:
    """The guard program that comes with the package, the folder that the package is in, and this Python."""
    return Home(
        guard=os.path.join(_PACKAGE, "bin", "phalanx-guard"),
        package=os.path.dirname(_PACKAGE),
        python=sys.executable,
    )
