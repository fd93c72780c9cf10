"""What Spark's UI is told of a run, where it can't be told. That it is told is in tests/e2e."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from phalanx.display.spark_ui import SparkUi

pytestmark = pytest.mark.timeout(60)


class Context:
    """A session's context that fails as one does whose JVM has gone."""

    @property
    def _gateway(self) -> Any:
        raise ConnectionRefusedError("the JVM has gone")


@pytest.mark.parametrize(
    "session",
    [
        SimpleNamespace(),
        SimpleNamespace(sparkContext=SimpleNamespace(_gateway=None)),
        SimpleNamespace(sparkContext=Context()),
    ],
)
def test_a_session_that_cant_be_told_disturbs_nobody(session: Any) -> None:
    """DISPLAY-10"""
    asked: list[int] = []
    run: Any = SimpleNamespace(snapshot=lambda: asked.append(1) or {}, stacks=dict)
    ui = SparkUi(session)
    ui.started(run, waiting=True)
    ui.closed()
    assert ui._thread is None or not ui._thread.is_alive(), "DISPLAY-10"
    assert not asked


def test_one_that_was_never_started_may_be_closed() -> None:
    session: Any = SimpleNamespace()
    SparkUi(session).closed()
