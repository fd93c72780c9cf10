"""Faults, one after the other, under a run that is to go on through all of them, and what has to be so afterwards."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import phalanx
import psutil
import pytest

from support.places import APPS
from support.programs import Program, eventually

# Runs whose numbers of ranks change within seconds.
CONF = {
    "spark.jars": phalanx.jar_path(),
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.phalanx.elastic.patience": "1s",
    "spark.phalanx.elastic.cooldown": "1s",
    # Faults of a host are no news here.
    "spark.phalanx.host.cooldown": "0",
    "spark.decommission.enabled": "true",
}
# By then the digits are known, however slow the machine is.
ENOUGH_STEPS = 200
# Of a test that has two minutes of faults.
TIMEOUT_S = 500
BY_HAND = "PHALANX_CHAOS"
"""The variable by which somebody has it go on for longer: seconds, and how many of them lie between two faults."""

Fault = Callable[[random.Random], Any]


def by_hand() -> list[Any]:
    """`PHALANX_CHAOS=1800,60` adds half an hour with a fault a minute; `pytest -rP` tells what happened."""
    seconds, _, every = os.environ.get(BY_HAND, "").partition(",")
    marks = pytest.mark.timeout(int(seconds or 0) + TIMEOUT_S)
    return [pytest.param(int(seconds), float(every), marks=marks)] if seconds else []


def command(folder: Path, least: int, most: int, restarts: int = 1000) -> list[str]:
    """That of the run's driver."""
    return [sys.executable, str(APPS / "enduring.py"), str(folder), *map(str, (least, most, restarts))]


def ranks_of(folder: Path) -> list[psutil.Process]:
    """The ranks that run, each under its guard."""
    found = []
    for path in sorted(folder.glob("pid-*")):
        try:
            rank = psutil.Process(int(path.name[4:]))
            if any("phalanx-guard" in parent.name() for parent in rank.parents()):
                found.append(rank)
        except psutil.Error:  # it has ended
            continue
    return found


def kills_a_rank(folder: Path) -> Fault:
    return lambda chance: chance.choice(ranks_of(folder)).kill()


def freezes_a_rank(folder: Path) -> Fault:
    return lambda chance: frozen([chance.choice(ranks_of(folder))], 1.0)


def decommissions(folder: Path) -> Fault:
    """Asks the driver to have Spark decommission an executor."""
    return lambda chance: Path(folder, f"decommission-{chance.random()}").touch()


def frozen(processes: list[psutil.Process], seconds: float) -> None:
    """Stops them, and has them go on after so long."""

    def each(act: Callable[[psutil.Process], None]) -> None:
        for process in processes:
            try:
                act(process)
            except psutil.Error:  # it has ended
                continue

    each(psutil.Process.suspend)
    threading.Timer(seconds, each, [psutil.Process.resume]).start()


def endures(
    program: Program, folder: Path, faults: Mapping[str, Fault], *, seconds: float, every: float
) -> dict[str, Any]:
    """Has a fault of these each so many seconds under the run of `program`. What the run said at its end, in which the
    losses are those of an undisturbed one, and the faults."""
    program.waits_for("the run trains", 120, lambda: reached(folder, 1))
    chance, story = random.Random(47), []
    end = time.monotonic() + seconds
    while time.monotonic() < end and program.process.poll() is None:
        time.sleep(every)
        kind = chance.choice(list(faults))
        try:
            faults[kind](chance)
        except (psutil.Error, IndexError):  # nobody was there
            kind += " (gone)"
        story.append(kind)
    program.waits_for("the run goes on", 120, lambda: reached(folder, ENOUGH_STEPS))
    Path(folder, "enough").touch()
    assert program.ends(240) == 0, f"{story}\n{program.text}"
    answer = dict(program.printed("ENDURED"))
    told = f"{story}\n{answer}\n{program.text}"
    assert answer["off"] < 1e-9, told
    assert answer["accuracy"] > 0.9, told
    assert answer["restarts"], told
    assert not answer["jobs"], told
    assert [story for story in story if not story.endswith(" (gone)")], told
    lines = [line for line in program.text.splitlines() if "[phalanx] " in line and "restart" in line]
    causes = [restart["cause"] for restart in answer["restarts"]]
    assert len(lines) == len(causes), told
    assert all(cause in line for line, cause in zip(lines, causes, strict=True)), told
    eventually("no rank is left", 30, lambda: not ranks_of(folder))
    answer["story"] = story
    print(answer)
    return answer


def reached(folder: Path, step: int) -> bool:
    """Whether the run has come to this step."""
    at = Path(folder, "at")
    return at.exists() and int(at.read_text()) >= step
