"""How often a run asks the driver's JVM."""

from __future__ import annotations

from typing import Any

import pytest
from support.questions import questions_to_the_jvm
from support.tiers import differs

pytestmark = pytest.mark.timeout(150)

MOST = 100


@differs("python", why="it asks for the plugin, and makes an RDD")
@pytest.mark.classic
def test_a_warm_run_asks_the_drivers_jvm_little(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        pass

    stage.run(nothing)  # the first one sends the jar
    asked = questions_to_the_jvm(monkeypatch)
    stage.run(nothing)
    assert len(asked) <= MOST, f"SESSION-3: {len(asked)} questions, {asked}"
