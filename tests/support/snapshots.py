"""Snapshots of runs, as `run.snapshot()` gives them."""

from __future__ import annotations

from typing import Any


def rank(number: int, host: str) -> dict[str, Any]:
    """A rank in the midst of its training."""
    return {
        "rank": number,
        "host": host,
        "partition": number,
        "executor": None,
        "gpus": [],
        "state": "running",
        "step": 180,
        "of": 400,
        "rate": 2.0,
        "collective_share": None,
        "data_share": 0.02,
        "values": {"loss": 0.231, "data": 0.02},
    }


def snapshot(ranks: int, *, hosts: int = 2, **fields: Any) -> dict[str, Any]:
    """A run in the midst of its training, a minute after it began."""
    per_host = max(ranks // hosts, 1)
    return {
        "version": 1,
        "run": "0123456789abcdef",
        "name": "train",
        "stage": "jvm",
        "state": "running",
        "time": 160.0,
        "started": 100.0,
        "ended": None,
        "attempt": 0,
        "world_size": ranks,
        "waits_for": None,
        "phases": [
            {"kind": "phase", "name": "waiting for tasks", "start": 100.0, "end": 108.0},
            {"kind": "phase", "name": "starting ranks", "start": 108.0, "end": 112.0},
            {"kind": "phase", "name": "training", "start": 112.0, "end": None},
        ],
        "restarts": [],
        "ranks": [rank(number, f"host-{number // per_host}") for number in range(ranks)],
        "ranks_left_out": 0,
        "slow": [],
        "lines": ["[rank 0] epoch 1", "[rank 1] epoch 1"],
        "losses": [[step, 2.3 / (1 + step / 20)] for step in range(0, 178, 4)] + [[180, 0.231]],
        "failure": None,
        **fields,
    }
