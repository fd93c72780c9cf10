"""What the tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.trainer import Drivers


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers[Any]]:
    """The driver programs of a module's tests, which later tests have those earlier ones left alive."""
    made: Drivers[Any] = Drivers()
    yield made
    made.stop()
