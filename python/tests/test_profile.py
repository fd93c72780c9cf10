"""Profiles of ranks that run: what is in the file, on which clock, and who is missing."""

from __future__ import annotations

import _thread
import gzip
import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from phalanx.rank import profiler
from phalanx.run import profile
from phalanx.run.profile import checked, rank_events

pytestmark = pytest.mark.timeout(100)


def events_of(path: str) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
        return events


NO_TORCH = "the rank has not imported torch"


def taken(folder: Path, number: int, work: Any) -> tuple[dict[str, Any], bytes]:
    """A profile of this process, whose main thread works meanwhile."""
    arguments = (str(folder), number, 0.2, _thread.get_ident(), 0)
    thread = threading.Thread(target=profiler.take, args=arguments)
    thread.start()
    while thread.is_alive():
        work()
    line, _, trace = (folder / f"profile-of-{number}").read_bytes().partition(b"\n")
    return json.loads(line), trace


def spins() -> None:
    time.sleep(0.002)


def test_a_rank_keeps_one_profile_and_says_what_torch_can_t(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    a = torch.ones(4, 4)
    monkeypatch.setattr(profiler, "MAX_TRACE_BYTES", 1000)
    told, trace = taken(tmp_path, 1, lambda: torch.mm(a, a))
    long = re.fullmatch(
        r"torch's trace of (\S+) s has \d+ MiB, more than the limit of 0 MiB: ask for (\S+) s", told["torch"]
    )
    assert long is not None, ("RANK-21", told["torch"])
    assert float(long[2]) < float(long[1]), "RANK-21"
    assert trace == b"", "RANK-21"

    def older(**_: object) -> None:
        raise TypeError("an unexpected argument")

    monkeypatch.setattr("torch._C._profiler._ExperimentalConfig", older)
    monkeypatch.setattr(profiler, "MAX_SPANS", 50)
    told, trace = taken(tmp_path, 2, spins)
    assert told["torch"] == f"torch {torch.__version__} can't trace the operations of all threads", "RANK-22"
    assert [path.name for path in tmp_path.iterdir()] == ["profile-of-2"], "RANK-21"
    spans = [span for span in told["spans"] if span["name"] == "spins"]
    assert all(span["thread"] == "MainThread" and span["from"] < span["to"] for span in spans)
    assert spans[0]["where"].startswith(f"{__file__}:")
    assert len(told["spans"]) < 50 + 2 * profiler.MAX_DEPTH * threading.active_count(), "RANK-21"
    monkeypatch.delitem(sys.modules, "torch")
    assert taken(tmp_path, 3, spins)[0]["torch"] == NO_TORCH, "RANK-20"


class Host:
    """A hub, and a rank on a host whose clock is ahead."""

    def __init__(self, ahead_s: float, spans: list[dict[str, Any]]) -> None:
        self._ahead_us = ahead_s * 1e6
        self._spans = spans
        self.asked: list[int] = []

    def read_profile(
        self, rank: int, start: int, bytes: int, timeout: float, *, number: int, millis: int
    ) -> tuple[int, int, bytes] | None:
        self.asked.append(start)
        clock_us = int(time.time_ns() / 1e3 + self._ahead_us)
        if len(self.asked) < 3:
            return 0, clock_us, b""
        header = {"pid": 7, "spans": self._spans, "torch": NO_TORCH}
        data = json.dumps(header).encode() + b"\n"
        return len(data), clock_us, data[start : start + 50]


def test_the_times_of_a_host_whose_clock_is_an_hour_ahead_are_the_drivers(tmp_path: Path) -> None:
    now_ns = time.time_ns() + 3600 * 10**9
    span = {"thread": "MainThread", "name": "train", "where": "a.py:1", "from": now_ns, "to": now_ns + 10**9}
    path = str(tmp_path / "profile.json")
    host: Any = Host(3600.0, [span])
    told = profile.take(host, 1, 0.1, [3], path, {3: "far"})
    assert told.ranks == [3]
    [event] = [event for event in events_of(path) if event["ph"] == "X"]
    assert abs(event["ts"]) < 5e6, "RUN-10"
    assert event["dur"] == 1e6
    clock = json.loads(Path(path).read_text())["metadata"]["clocks"]["3"]
    assert clock["ahead_us"] == pytest.approx(3600e6, abs=1e6), "RUN-10"


def test_tracks_of_torch_are_the_ranks_and_ids_of_two_ranks_differ() -> None:
    trace = {
        "baseTimeNanoseconds": 1_000_000_000,
        "traceEvents": [
            {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "thread 8 (python)"}},
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": 20, "args": {"name": "stream 20 "}},
            {"ph": "X", "name": "aten::mm", "pid": 7, "tid": 8, "ts": 5.0, "dur": 1.0},
            {"ph": "X", "name": "gemm", "pid": 0, "tid": 20, "ts": 6.0, "dur": 1.0},
            {"ph": "s", "name": "fwdbwd", "pid": 7, "tid": 8, "ts": 5.0, "id": 1},
            {"ph": "X", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 0.0},
        ],
    }
    header = {"pid": 7, "spans": []}
    events = list(rank_events(3, "h", header, trace, 0, 1_000_000_000))
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(tracks.values()) == ["thread 8 (python)", "GPU 0: stream 20"]
    assert {event["pid"] for event in events} == {3}
    assert {event["name"]: tracks[event["tid"]] for event in events if event["ph"] == "X"} == {
        "aten::mm": "thread 8 (python)",
        "gemm": "GPU 0: stream 20",
    }
    assert [event["id"] for event in events if event["ph"] == "s"] == ["3/1"]
    assert next(event["ts"] for event in events if event["name"] == "gemm") == 6.0


def test_what_can_t_be_asked_for_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    assert checked(1, [3, 0, 3], path, 4) == ([0, 3], str(path))
    for seconds in (0, -1, 60.5):
        with pytest.raises(ValueError, match="and at most 60 s"):
            checked(seconds, [0], path, 4)
    for ranks, why in [([], "1 to 64 ranks, not 0"), (range(65), "not 65"), ([4], "only ranks 0 to 3")]:
        with pytest.raises(ValueError, match=why):
            checked(1, ranks, path, 4 if len(ranks) < 65 else 100)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        checked(1, [0], tmp_path / "nowhere" / "profile.json", 4)
