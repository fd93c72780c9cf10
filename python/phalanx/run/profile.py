"""A profile of ranks that run: each is asked for one, and all are merged into one file of Chrome's trace format.

RUN-10 (one-clock): times are those of the driver's wall clock. How far a rank's host is ahead of it is measured
through the hub: of all questions to the rank the one that is answered soonest counts, and half of its round trip is the
most by which that is wrong. A distance below that is left alone.
RUN-11 (who-is-missing): a rank that gives no profile is named, with the reason; the others' are there.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from .. import _native
from ..plumbing.whole_file import whole_or_absent

MAX_SECONDS = 60.0
MAX_RANKS = 64
# How long a rank may take beside the seconds that were asked for: its watchdog looks once a second, torch writes.
PATIENCE_S = 30.0
# How long a host may take for one piece.
ANSWER_S = 10.0
_LOOK_EVERY_S = 0.2
_PIECE_BYTES = 128 << 10
# A trace of torch's of 64 MiB, and the spans of the Python stacks.
_MAX_BYTES = 128 << 20


class Profile(NamedTuple):
    """What `Run.profile` has left."""

    path: str
    """The file, for ui.perfetto.dev or chrome://tracing."""
    ranks: list[int]
    """The ranks that are in it."""
    missing: dict[int, str]
    """Why others that were asked for are not in it, or not with all: by rank, in a sentence."""


class _Clock(NamedTuple):
    """How far a host's wall clock is ahead of the driver's, and by how much that may be wrong, in nanoseconds."""

    ahead_ns: int
    error_ns: int

    @property
    def shift_ns(self) -> int:
        """What is taken from its times."""
        return self.ahead_ns if abs(self.ahead_ns) > self.error_ns else 0


class _Asked:
    """A rank that is asked for its profile."""

    def __init__(self, hub: _native.Hub, rank: int, number: int, millis: int, file: IO[bytes]) -> None:
        self._hub = hub
        self._number, self._millis = number, millis
        self.rank = rank
        self.file = file
        self.clock = _Clock(0, 1 << 62)
        self.problem = ""
        self.over = False

    def _read(self, start: int) -> tuple[int, bytes]:
        sent, began = time.time_ns(), time.monotonic_ns()
        piece = self._hub.read_profile(
            self.rank, start, _PIECE_BYTES, ANSWER_S, number=self._number, millis=self._millis
        )
        half = (time.monotonic_ns() - began) // 2
        if piece is None:
            raise TimeoutError(f"its host did not answer within {ANSWER_S:g} s")
        end, host_us, data = piece
        if half < self.clock.error_ns:
            self.clock = _Clock(host_us * 1000 - (sent + half), half)
        return end, data

    def look(self) -> None:
        """Asks once more, and takes what there is of the profile."""
        try:
            end = 1
            while self.file.tell() < end <= _MAX_BYTES:
                end, data = self._read(self.file.tell())
                if not data:
                    return
                self.file.write(data)
        except (_native.NativeError, TimeoutError) as problem:
            self.give_up(str(problem))
        else:
            self.over = True
            if end > _MAX_BYTES:
                self.give_up(
                    f"its profile has {end >> 20} MiB, more than the limit of {_MAX_BYTES >> 20} MiB"
                )

    def give_up(self, why: str) -> None:
        self.problem, self.over = why, True


def take(
    hub: _native.Hub, number: int, seconds: float, ranks: list[int], path: str, hosts: dict[int, str]
) -> Profile:
    """Takes profiles of these ranks, and writes what came of them to `path`, gzipped where that ends with `.gz`.

    Raises `RuntimeError` where no rank gave one.
    """
    with contextlib.ExitStack() as files:
        asked = []
        for rank in ranks:
            file = files.enter_context(tempfile.TemporaryFile())
            asked.append(_Asked(hub, rank, number, int(seconds * 1000), file))
        began_ns, until = time.time_ns(), time.monotonic() + seconds + PATIENCE_S
        while waiting := [one for one in asked if not one.over]:
            for one in waiting:
                one.look()
                if not one.over and time.monotonic() > until:
                    one.give_up(f"no profile came within {seconds + PATIENCE_S:g} s")
            time.sleep(_LOOK_EVERY_S)
        there = [one for one in asked if not one.problem]
        missing = {one.rank: one.problem for one in asked if one.problem}
        if not there:
            raise RuntimeError(
                "; ".join(f"rank {rank} gave no profile: {why}" for rank, why in missing.items())
            )
        clocks = {
            str(one.rank): {
                "ahead_us": one.clock.ahead_ns / 1e3,
                "wrong_by_us_at_most": one.clock.error_ns / 1e3,
            }
            for one in there
        }
        _write(path, _all_events(there, hosts, began_ns, missing), {"clocks": clocks})
    return Profile(path, [one.rank for one in there], missing)


def _all_events(
    asked: list[_Asked], hosts: dict[int, str], began_ns: int, missing: dict[int, str]
) -> Iterator[dict[str, Any]]:
    """Those of one rank after the other; a rank that has no trace of torch's is noted in `missing`."""
    for one in asked:
        one.file.seek(0)
        header = json.loads(one.file.readline())
        trace = one.file.read()
        if header["torch"]:
            missing[one.rank] = f"only its Python stacks are there: {header['torch']}"
        host, shift_ns = hosts.get(one.rank, ""), one.clock.shift_ns
        yield from rank_events(one.rank, host, header, json.loads(trace) if trace else {}, shift_ns, began_ns)


def rank_events(
    rank: int, host: str, header: dict[str, Any], trace: dict[str, Any], shift_ns: int, began_ns: int
) -> Iterator[dict[str, Any]]:
    """A rank's events: one process, whose tracks are its threads' operations and stacks, and its GPUs' streams.
    Times are microseconds since `began_ns`, on the driver's clock."""
    name = f"rank {rank} ({host})" if host else f"rank {rank}"
    yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
    tracks: dict[str, int] = {}

    def track(key: str) -> Iterator[dict[str, Any]]:
        if key not in tracks:
            tracks[key] = len(tracks) + 1
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": tracks[key], "args": {"name": key}}

    for span in header["spans"]:
        key = f"{span['thread']}, Python"
        yield from track(key)
        start = (span["from"] - shift_ns - began_ns) / 1e3
        took = (span["to"] - span["from"]) / 1e3
        args = {"where": span["where"]}
        yield {
            "ph": "X",
            "name": span["name"],
            "pid": rank,
            "tid": tracks[key],
            "ts": start,
            "dur": took,
            "args": args,
        }
    base_ns = int(trace.get("baseTimeNanoseconds", 0)) - shift_ns - began_ns
    names = dict(_names(trace.get("traceEvents", ()), header["pid"]))
    for event in trace.get("traceEvents", ()):
        if event.get("ph") == "M" or "ts" not in event or event.get("pid") in ("Spans", "Traces", ""):
            continue
        place = (event.get("pid"), event.get("tid"))
        key = names.get(place) or f"{place[0]} {place[1]}"
        yield from track(key)
        moved = {**event, "pid": rank, "tid": tracks[key], "ts": float(event["ts"]) + base_ns / 1e3}
        if "id" in event:
            moved["id"] = f"{rank}/{event['id']}"
        yield moved


def _names(events: Iterable[dict[str, Any]], pid: int) -> Iterator[tuple[tuple[Any, Any], str]]:
    """What torch calls its tracks."""
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            of = "" if event.get("pid") == pid else f"GPU {event.get('pid')}: "
            yield (event.get("pid"), event.get("tid")), of + str(event["args"]["name"]).strip()


def _write(path: str, events: Iterator[dict[str, Any]], metadata: dict[str, Any]) -> None:
    with whole_or_absent(path) as file:
        zipped = gzip.GzipFile("", "wb", 6, file) if path.endswith(".gz") else None
        out: Any = file if zipped is None else zipped
        out.write(b'{"displayTimeUnit": "ms", "traceEvents": [')
        comma = b"\n"
        for event in events:
            out.write(comma + json.dumps(event).encode())
            comma = b",\n"
        out.write(b'\n], "metadata": ' + json.dumps(metadata).encode() + b"}\n")
        if zipped is not None:
            zipped.close()


def checked(
    seconds: float, ranks: Iterable[int], path: str | os.PathLike[str], world_size: int
) -> tuple[list[int], str]:
    """The ranks, each once, and the file's whole path.

    Raises `ValueError` for a time, or ranks, that can't be; `FileNotFoundError` where the file's folder is not there.
    """
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"a profile takes more than 0 and at most {MAX_SECONDS:g} s, not {seconds} s")
    wanted = sorted(set(ranks))
    if not 0 < len(wanted) <= MAX_RANKS:
        raise ValueError(f"a profile takes 1 to {MAX_RANKS} ranks, not {len(wanted)}")
    if wanted[0] < 0 or wanted[-1] >= world_size:
        raise ValueError(f"the run has only ranks 0 to {world_size - 1}, not all of {wanted}")
    whole = os.path.abspath(os.fspath(path))
    if not os.path.isdir(os.path.dirname(whole)):
        raise FileNotFoundError(f"there is no folder {os.path.dirname(whole)} for the profile")
    return wanted, whole
