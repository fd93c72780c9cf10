"""What a snapshot of a run says in words: how far it is, how long it takes. Pure functions of the snapshot."""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

ENDS = ("succeeded", "failed", "cancelled")

# A rank is marked as the slowest if it takes so many steps in the time in which the median rank takes one.
SLOWEST_SHARE = 0.8


class Progress(NamedTuple):
    """How far the ranks are."""

    step: int
    of: int | None
    rate: float | None
    """Steps in a second, of the median rank."""
    left: float | None
    """Seconds, if it goes on like this."""


def progress(snapshot: dict[str, Any]) -> Progress | None:
    """How far the run is; None where no rank has told."""
    told = [rank for rank in snapshot["ranks"] if rank["step"] is not None]
    if not told:
        return None
    furthest = max(told, key=lambda rank: int(rank["step"]))
    rates = [rank["rate"] for rank in told if rank["rate"]]
    rate = median(rates) if rates else None
    step, of = furthest["step"], furthest["of"]
    left = (
        (of - step) / rate
        if of is not None and rate and snapshot["state"] not in ENDS and of > step
        else None
    )
    return Progress(step, of, rate, left)


def slowest(snapshot: dict[str, Any]) -> set[int]:
    """The ranks that are marked as slow: those that the run named, and the slowest if it is much behind the others."""
    marked = set(snapshot["slow"])
    rates = {
        rank["rank"]: rank["rate"]
        for rank in snapshot["ranks"]
        if rank["rate"] and rank["state"] == "running"
    }
    if len(rates) > 1:
        last = min(rates, key=lambda rank: rates[rank])
        if rates[last] < SLOWEST_SHARE * median(rates.values()):
            marked.add(last)
    return marked


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def number(value: float) -> str:
    """A number as short as it may be: `0.2312`, `12.5`, `3.1e-07`."""
    return f"{value:.4g}"


def elapsed(snapshot: dict[str, Any]) -> float:
    """For how many seconds the run lasts, or lasted."""
    return float((snapshot["ended"] or snapshot["time"]) - snapshot["started"])


def present_phase(snapshot: dict[str, Any]) -> str:
    """Where the run is, in words."""
    if snapshot["state"] in ENDS or not snapshot["phases"]:
        return str(snapshot["state"])
    if snapshot["waits_for"] is not None:
        return str(snapshot["waits_for"])
    return str(snapshot["phases"][-1]["name"])


def how_far(told: Progress) -> str:
    """`step 120 of 400, 3.2 steps/s, 1 min 28 s left`."""
    parts = [f"step {told.step}" + (f" of {told.of}" if told.of is not None else "")]
    if told.rate is not None:
        parts.append(f"{number(told.rate)} steps/s")
    if told.left is not None:
        parts.append(f"{duration(told.left)} left")
    return ", ".join(parts)
