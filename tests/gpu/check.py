"""Checks in an order, each in a process of its own with a limit, told as they end: `ok`, `FAILED` or `skipped`.

TEST-9 (one-by-one): a check that fails, hangs or takes its process down is one line, and the next one runs.
TEST-10 (nothing-lost): what is known is in the file of results after each check, whole, whatever comes next.
TEST-11 (says-where): a check says on which device it ran; without a GPU those that need one are skipped.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.plumbing.whole_file import whole_or_absent

LIMIT_S = 30.0
# After a limit: how long what a check has started may take to end.
_END_S = 5.0


class Skip(Exception):
    """Raised by a check that can't be made here, with the reason."""


class Check(NamedTuple):
    """Something to prove."""

    name: str
    needs_gpu: bool
    limit_s: float
    prove: Callable[[], str]
    """Proves it, and says in a line what was seen; raises where it isn't so, and `Skip` where it can't be seen here."""


class Outcome(NamedTuple):
    """What came of a check."""

    name: str
    outcome: str
    """`ok`, `FAILED` or `skipped`."""
    told: str
    """What was seen, the cause, or the reason."""
    seconds: float
    device: str
    """`cuda` or `cpu`; empty for a check that was skipped."""


CHECKS: list[Check] = []


def check(
    name: str, *, needs_gpu: bool = False, limit_s: float = LIMIT_S
) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Adds a function to the checks, after those that are there."""

    def add(prove: Callable[[], str]) -> Callable[[], str]:
        CHECKS.append(Check(name, needs_gpu, limit_s, prove))
        return prove

    return add


def run(
    checks: Sequence[Check],
    folder: Path,
    *,
    program: Sequence[str],
    has_gpu: bool,
    within_s: float,
    facts: dict[str, Any],
) -> list[Outcome]:
    """Makes the checks one after another, prints a line each, and keeps `folder/gpu-check.json`, with the `facts`.

    `program` is the command that calls `make` with the two words that follow it. What a check writes is in `folder` by
    its name. A check that can't begin within `within_s` seconds is skipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    began = time.monotonic()
    for one in checks:
        left = within_s - (time.monotonic() - began)
        if one.needs_gpu and not has_gpu:
            outcome = Outcome(one.name, "skipped", "there is no GPU here", 0.0, "")
        elif left < 1:
            outcome = Outcome(one.name, "skipped", f"{within_s:g} s were over", 0.0, "")
        else:
            outcome = _made(one, folder, program, min(one.limit_s, left), "cuda" if has_gpu else "cpu")
        outcomes.append(outcome)
        print(f"{outcome.outcome:8} {outcome.name:28} {outcome.seconds:5.1f} s  {outcome.told}", flush=True)
        told = {**facts, "seconds": time.monotonic() - began, "checks": [each._asdict() for each in outcomes]}
        with whole_or_absent(str(folder / "gpu-check.json")) as file:
            file.write(json.dumps(told, indent=1).encode())
    return outcomes


def _made(one: Check, folder: Path, program: Sequence[str], limit_s: float, device: str) -> Outcome:
    answer = folder / f"{one.name}.answer"
    began = time.monotonic()
    with open(folder / f"{one.name}.log", "wb") as log:
        words = [*program, one.name, str(answer)]
        # A session of its own, so that all that it has started can be told to end.
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = time.monotonic() - began
    outcome, told = "FAILED", f"no end within {limit_s:g} s; {one.name}.log has its output"
    if answer.exists():
        outcome, told = json.loads(answer.read_text())
        answer.unlink()
    elif code is not None:
        told = f"its process ended with {code}; {one.name}.log has its output"
    return Outcome(one.name, outcome, told, round(seconds, 1), device if outcome != "skipped" else "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what a check has left, first by asking."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            if number == signal.SIGKILL:
                return


def make(name: str, answer: str) -> None:
    """Makes one check in this process, and leaves what came of it at the path `answer`."""
    [one] = [each for each in CHECKS if each.name == name]
    faulthandler.dump_traceback_later(max(1.0, one.limit_s - 2))
    try:
        told = ("ok", one.prove())
    except Skip as reason:
        told = ("skipped", str(reason))
    except BaseException as problem:
        traceback.print_exc()
        told = ("FAILED", _in_a_line(problem))
    with whole_or_absent(answer) as file:
        file.write(json.dumps(told).encode())


def _in_a_line(problem: BaseException) -> str:
    said = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {said}"[:600]


@contextlib.contextmanager
def fails(kind: type[BaseException]) -> Iterator[Any]:
    """As `pytest.raises`, which a machine with a GPU may not have: what is raised is its value's `value`."""

    class Caught:
        value: Any = None

    caught = Caught()
    try:
        yield caught
    except kind as problem:
        caught.value = problem
        return
    raise AssertionError(f"no {kind.__name__} was raised")
