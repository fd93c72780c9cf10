"""What happens during a run, as the hub tells it: the one place where its events are read.

An event of the Rust core (`rust/job/src/driver/event.rs`) is three texts: its kind, a text for people, and its fields
as JSON.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..errors import RankOutcome
from .observer import Restart


class Output(NamedTuple):
    """Whole, prefixed lines to show."""

    text: str


class PhaseReached(NamedTuple):
    """The job, or a rank, got to a phase, so many seconds after the hub opened."""

    name: str
    rank: int | None
    seconds: float


class Status(NamedTuple):
    """Where the job is, in words."""

    text: str


class Reported(NamedTuple):
    """A rank told by `phalanx.report` how far it is: its step, and what else it told."""

    rank: int
    report: dict[str, Any]


class EveryReport(NamedTuple):
    """What a rank told by `phalanx.report`, each time, where the job says that this is wanted."""

    rank: int
    reports: list[dict[str, Any]]
    """Each with `step`, `at_ms` and `values`, in order."""
    left_out: int
    """How many others were left out on their way."""


class Restarted(NamedTuple):
    """All ranks run again."""

    restart: Restart


class Resubmit(NamedTuple):
    """A task was lost: end the Spark stage, and submit another whose nodes begin with this attempt."""

    attempt: int


class SeatWanted(NamedTuple):
    """Submit the seat of a partition once more, for the gang of tasks that was submitted for this attempt."""

    attempt: int
    partition: int


class SeatTaken(NamedTuple):
    """The job of this Spark stage has the seat of a partition: end the others of that partition."""

    attempt: int
    partition: int
    stage: int


class Placed(NamedTuple):
    """The ranks of an attempt of a run with data sets have their places, on hosts of these names (`uname -n`)."""

    attempt: int
    hosts: list[str]


class Carried(NamedTuple):
    """A carrier serves the blocks of a host, where there is no node."""

    attempt: int
    host: str


class Outcome(NamedTuple):
    """The last event."""

    ranks: list[RankOutcome]
    failure: dict[str, Any] | None
    """The fields of the failure; None where every rank ended well."""
    text: str
    """The failure for people."""


Event = (
    Output
    | PhaseReached
    | Status
    | Reported
    | EveryReport
    | Restarted
    | Resubmit
    | SeatWanted
    | SeatTaken
    | Placed
    | Carried
    | Outcome
)


def event_of(packed: tuple[str, str, str]) -> Event:
    """The event that `Hub.next` gave."""
    kind, text, packed_fields = packed
    fields: dict[str, Any] = json.loads(packed_fields) if packed_fields else {}
    match kind:
        case "output":
            return Output(text)
        case "phase":
            return PhaseReached(text, fields["rank"], fields["seconds"])
        case "status":
            return Status(text)
        case "progress":
            return Reported(fields["rank"], {"step": fields["step"], **(json.loads(text) if text else {})})
        case "reports":
            return EveryReport(fields["rank"], json.loads(text), fields["left_out"])
        case "restarted":
            return Restarted(Restart(**fields))
        case "resubmit":
            return Resubmit(fields["attempt"])
        case "seat_wanted":
            return SeatWanted(fields["attempt"], fields["partition"])
        case "seat_taken":
            return SeatTaken(fields["attempt"], fields["partition"], fields["stage"])
        case "placed":
            return Placed(fields["attempt"], fields["hosts"])
        case "carried":
            return Carried(fields["attempt"], text)
        case "finished" | "failed":
            ranks = [RankOutcome(**outcome) for outcome in fields["ranks"]]
            return Outcome(ranks, fields if kind == "failed" else None, text)
    raise ValueError(f"an unknown event: {kind}")
