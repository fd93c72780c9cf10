"""Profiles of a run's ranks, with torch and without."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor
from support.programs import eventually

pytestmark = pytest.mark.timeout(100)


def works(folder: str) -> None:
    import os
    import time

    rank = os.environ["RANK"]
    if rank == "2":
        return
    if rank == "0":
        import torch

        a = torch.rand(50, 50)

    def multiplies() -> None:
        if rank == "0":
            torch.mm(a, a)
        time.sleep(0.001)

    open(f"{folder}/begun-{rank}", "w").close()
    while not os.path.exists(f"{folder}/go"):
        multiplies()


def events_of(path: str) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
        return events


def test_ranks_with_torch_and_without_are_in_one_file_and_one_that_ended_is_named(
    spark: Any, tmp_path: Path
) -> None:
    # A rank that starts cold has only what it imports by itself.
    spark.conf.set("spark.phalanx.warm.enabled", "false")
    try:
        distributor = TorchDistributor(num_processes=3, local_mode=True, use_gpu=False, logs="off")
        run = distributor.start(works, str(tmp_path))
    finally:
        spark.conf.unset("spark.phalanx.warm.enabled")
    try:
        eventually("two ranks work", 60, lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        eventually("rank 2 has ended", 30, lambda: run.snapshot()["ranks"][2]["state"] != "running")
        asked = time.time()
        told = run.profile(0.5, range(3), tmp_path / "profile.json.gz")
        assert (told.path, told.ranks) == (str(tmp_path / "profile.json.gz"), [0, 1]), "RANK-35"
        assert told.missing == {
            2: "the rank has ended",
            1: "only its Python stacks are there: " + NO_TORCH,
        }, "RUN-11"
        with pytest.raises(RuntimeError, match="rank 2 gave no profile: the rank has ended"):
            run.profile(0.5, [2], tmp_path / "none.json")
        assert not (tmp_path / "none.json").exists()
    finally:
        (tmp_path / "go").touch()
    run.result(60)
    events = events_of(told.path)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(names) == {0, 1}
    assert all(names[rank].startswith(f"rank {rank} (") for rank in (0, 1))
    named = Counter((event["pid"], event["name"]) for event in events)
    assert named[0, "aten::mm"] > 5
    assert named[1, "aten::mm"] == 0
    assert any(event["pid"] == 1 and event["name"].endswith("multiplies") for event in events)
    times = [event["ts"] / 1e6 for event in events if event["ph"] == "X"]
    assert -0.1 <= min(times) <= max(times) <= time.time() - asked, "RUN-10"
    with pytest.raises(RuntimeError, match="is not running"):
        run.profile(path=tmp_path / "late.json")


NO_TORCH = "the rank has not imported torch"
