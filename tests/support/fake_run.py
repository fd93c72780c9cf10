"""A run whose hub and stage are stand-ins, for what the thread that drives it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import phalanx._native
import phalanx.run.run
import pytest
from phalanx.display.shown import Shown
from phalanx.request.payload import Payload
from phalanx.request.run_request import RunRequest
from phalanx.request.settings import Settings
from phalanx.run.observer import Observer


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

    def forget(self) -> None: ...

    def close(self) -> None: ...

    def cancel(self) -> None:
        self.hub.calls.append("cancelled")


def request_of(job: phalanx._native.Job, *, folder: Any = "", payload: Any = b"") -> RunRequest:
    """What a run of a job on this host is asked to do."""
    return RunRequest(
        job=job,
        payload=Payload(payload),
        settings=Settings({"spark.phalanx.progress": "off"}),
        variables={},
        endpoint=("127.0.0.1", "127.0.0.1"),
        work_dir=str(folder),
    )


def fake_run(monkeypatch: pytest.MonkeyPatch, folder: Any, *observers: Observer) -> phalanx.run.run.Run:
    """A run in local mode, which these observe beside what shows it."""
    monkeypatch.setattr(phalanx._native, "Hub", FakeHub)
    job = phalanx._native.Job(name="train", ranks=1, tasks=1, use_gpu=False, settings={})
    stage: Any = FakeStage()
    lease = SimpleNamespace(release=lambda: None)
    shown = Shown(job.name, "off")
    return phalanx.run.run.Run(
        request_of(job, folder=folder),
        stage=stage,
        lease=lease,
        inputs=None,
        observers=[*observers, shown],
        face=shown,
    )
