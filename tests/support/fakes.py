"""Stand-ins: a cluster that fills up, the native module, a run."""

from __future__ import annotations

from typing import Any, ClassVar


class FakeCluster:
    """A session whose executors register one by one: the n-th look finds `slots[n]` slots."""

    def __init__(self, slots: list[int], master: str = "yarn", **conf: str) -> None:
        self.slots = slots
        self.sparkContext = self
        self.master = master
        self._jsc = self
        self._conf = conf

    def getConf(self) -> dict[str, str]:
        return self._conf

    def sc(self) -> FakeCluster:
        return self

    def resourceProfileManager(self) -> FakeCluster:
        return self

    def defaultResourceProfile(self) -> None: ...

    def maxNumConcurrentTasks(self, profile: None) -> int:
        return self.slots.pop(0) if len(self.slots) > 1 else self.slots[0]


class FakeJob(str):
    """Stands for a job of the Rust module."""

    tasks: int
    least_tasks: int


class FakeNative:
    """Stands for the Rust module where a test is about what Python hands over to it."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []

    def Job(self, **fields: Any) -> FakeJob:
        self.jobs.append(fields)
        job = FakeJob(f"job {len(self.jobs)}")
        job.tasks = job.least_tasks = fields["tasks"]
        return job

    def rank_variables(self, settings: dict[str, str], given: dict[str, str]) -> dict[str, str]:
        return dict(given)


class FakeRun:
    """Stands for a Run: keeps what it is given, and ends as the test says."""

    made: ClassVar[list[FakeRun]] = []
    outcome: ClassVar[Any] = None

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.payload: bytes = fields["request"].payload.packed
        self.done = False
        FakeRun.made.append(self)

    def drive(self) -> Any:
        outcome = FakeRun.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome(self) if callable(outcome) else outcome

    def start(self) -> FakeRun:
        return self
