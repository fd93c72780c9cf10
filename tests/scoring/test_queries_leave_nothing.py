"""Queries with a model, however they end, leave nothing in executors: no memory of batches, descriptor or process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import models
import phalanx
import psutil
import pytest
from rows import IDLE_SECONDS, ToBeCancelled, error_of, numbers
from support.programs import below, eventually, models_here
from support.tiers import whole
from support.usage import Usage

pytestmark = [pytest.mark.usefixtures("no_model_is_left"), pytest.mark.timeout(400)]


def held() -> list[str]:
    """The memory of batches and models that this application's processes have open or mapped."""
    found = []
    for process in below(os.getpid()):
        try:
            folder = Path(f"/proc/{process.pid}")
            opened = [os.readlink(file) for file in (folder / "fd").iterdir()]
            mapped = (folder / "maps").read_text().splitlines()
            name = process.name()
        except (OSError, psutil.Error):
            continue
        found += [
            f"{name}: {line}"
            for line in opened + mapped
            if "phalanx-batch" in line or "phalanx-model" in line
        ]
    return found


def cancelled(session: Any, folder: Path) -> str:
    """What a query fails with that is cancelled while its model computes."""
    started = folder / f"started {len(list(folder.iterdir()))}"
    scored = phalanx.predict(
        numbers(session, 40, 2), models.Slow(str(started), 0.3), inputs="x", outputs="y double", batch_size=4
    )
    query = ToBeCancelled(session, scored)
    eventually("a model computes", 60, started.exists)
    assert held(), "what is looked for is there"
    return query.cancel()


@whole("many queries")
def test_queries_that_succeed_fail_are_cut_short_or_cancelled_leave_as_much_as_the_first_did(
    session: Any, tmp_path: Path
) -> None:
    frame = numbers(session, 400, 4)

    def failing() -> Any:
        def model(x: Any) -> Any:
            raise ValueError("it can't")

        return model

    def each() -> None:
        scored = phalanx.predict(frame, models.Twice(), inputs="x", outputs="y double", batch_size=10)
        # Without a shuffle, for which Spark adds threads of its own as it needs them.
        assert len(scored.filter("y >= 0").collect()) == 400
        assert len(scored.limit(3).collect()) == 3
        fails = phalanx.predict(frame.coalesce(1), failing, inputs="x", outputs="y double")
        assert "it can't" in error_of(fails.collect)
        assert "cancel" in cancelled(session, tmp_path).lower()

    def settle() -> None:
        eventually("models end", IDLE_SECONDS + 30, lambda: not models_here())
        eventually("SCORE-3: nobody holds memory of batches", 30, lambda: not held())

    for _ in range(2):
        each()
    settle()
    before = Usage(session)
    for _ in range(3):
        each()
    settle()
    growth: list[str] = []

    def as_before() -> bool:
        growth[:] = Usage(session).growth(before)
        return not growth

    try:
        eventually("as much as after the second", 30, as_before)
    except AssertionError:
        pytest.fail(f"more than after two rounds: {growth}")
