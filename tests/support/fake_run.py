"""A run whose hub and stage are stand-ins, for what the thread that drives it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import phalanx._native
import phalanx.run.run
import pytest


class FakeHub:
    """A hub whose job has one line of output and ends."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        self.events = [
            ("output", "a line\n", ""),
            ("status", "training", ""),
            ("finished", "", '{"ranks": []}'),
        ]
        self.calls: list[str] = []
        FakeHub.last = self

    last: Any = None

    def next(self, _seconds: float) -> Any:
        return self.events.pop(0)

    def logs(self, _rank: int) -> str:
        return ""

    def result_path(self, _rank: int) -> None:
        return None

    def stop(self, reason: str) -> None:
        self.calls.append(reason)
        self.events = [("failed", "the story", '{"ranks": [], "kind": "cancelled"}')]

    def close(self) -> None:
        self.calls.append("closed")


class FakeStage:
    """A stage that is over at once."""

    error = None

    def start(self, hub: FakeHub, attempt: int = 0) -> None:
        self.hub = hub

    def join(self, _seconds: float) -> bool:
        self.hub.calls.append("joined")
        return True

    def forget_payload(self) -> None: ...

    def close(self) -> None: ...

    def cancel(self) -> None:
        self.hub.calls.append("cancelled")


def fake_run(monkeypatch: pytest.MonkeyPatch, folder: Any) -> phalanx.run.run.Run:
    """A run in local mode."""
    monkeypatch.setattr(phalanx._native, "Hub", FakeHub)
    ui = SimpleNamespace(start=lambda: None, stop=lambda: None)
    fields: Any = {
        "stage": FakeStage(),
        "endpoint": ("127.0.0.1", "127.0.0.1"),
        "work_dir": str(folder),
        "settings": SimpleNamespace(progress="off"),
        "lease": SimpleNamespace(release=lambda: None),
        "ui": lambda *_: ui,
    }
    job = phalanx._native.Job(name="train", ranks=1, tasks=1, use_gpu=False, settings={})
    return phalanx.run.run.Run(job=job, payload=b"", **fields)
