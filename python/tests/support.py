"""Types and places that several tests use."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = PACKAGE_ROOT.parent


@dataclass
class RankRun:
    """How a rank ended and what it left."""

    code: int
    out: str
    err: str
    notes: list[str]
    noted_error: dict[str, Any] | None
    directory: Path

    @property
    def result(self) -> Any:
        return pickle.loads((self.directory / "result").read_bytes())

    @property
    def error(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.directory / "error.json").read_text())
        return record

    @property
    def left(self) -> set[str]:
        return {entry.name for entry in self.directory.iterdir()}


def sent(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    """The payload of a call."""
    from phalanx.payload import function_payload

    return function_payload(fn, args, kwargs, sys_path=[])


def script(folder: Path, text: str, *args: object, name: str = "train.py") -> bytes:
    """The payload of a file with this text, which is left in `folder`."""
    from phalanx.payload import file_payload

    path = folder / name
    path.write_text(textwrap.dedent(text))
    return file_payload(path, args, sys_path=[])


def in_session(
    master: str, text: str, *, conf: dict[str, str] | None = None, connect: bool = False, timeout: float = 100
) -> Any:
    """What `text` leaves in `answer`, run with a session `spark` of its own in a process of its own; with `connect`
    by a client of a Spark Connect server that has this master."""
    program = f"""
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.{"remote" if connect else "master"}({master!r}).config("spark.ui.enabled", "false")
for key, value in {conf or {}!r}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
try:
{textwrap.indent(textwrap.dedent(text), "    ")}
finally:
    spark.stop()
print("ANSWER", json.dumps(answer))
"""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("ANSWER ")[2])


class Cluster:
    """A session whose executors register one by one: the n-th look finds `slots[n]` slots."""

    def __init__(self, slots: list[int], master: str = "yarn", **conf: str) -> None:
        self.slots = slots
        self.sparkContext = self
        self.master = master
        self._jsc = self
        self._conf = conf

    def getConf(self) -> dict[str, str]:
        return self._conf

    def sc(self) -> Cluster:
        return self

    def resourceProfileManager(self) -> Cluster:
        return self

    def defaultResourceProfile(self) -> None: ...

    def maxNumConcurrentTasks(self, profile: None) -> int:
        return self.slots.pop(0) if len(self.slots) > 1 else self.slots[0]


class FakeNative:
    """Stands for the Rust module where a test is about what Python hands over to it."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []

    def new_job(self, **fields: Any) -> bytes:
        self.jobs.append(fields)
        return b"job"


class FakeRun:
    """Stands for a Run: keeps what it is given, and ends as the test says."""

    made: ClassVar[list[FakeRun]] = []
    outcome: ClassVar[Any] = None

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.done = False
        FakeRun.made.append(self)

    def drive(self) -> Any:
        outcome = FakeRun.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome(self) if callable(outcome) else outcome

    def start(self) -> FakeRun:
        return self
