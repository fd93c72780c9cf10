"""What `run.snapshot()` says of a run, in local mode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor, TrainingError
from support.fake_run import FakeHub, fake_run


def _train(go: str, fails: bool) -> None:
    import os
    import time as clock

    import phalanx

    rank = int(os.environ["RANK"])
    print(f"<b>hello</b> of {rank}")
    for step in range(1, 6):
        phalanx.report(step=step, of=20, loss=1.0 / step, lr=0.1)
        clock.sleep(0.6)
    deadline = clock.monotonic() + 60
    while not os.path.exists(go) and clock.monotonic() < deadline:
        clock.sleep(0.02)
    if fails and rank == 1:
        raise ValueError("<script>")


def _once(run: Any, is_so: Any) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        now: dict[str, Any] = run.snapshot()
        if is_so(now):
            return now
        assert time.monotonic() < deadline, now
        time.sleep(0.05)


def test_a_snapshot_tells_what_the_ranks_report_and_how_the_run_ended(spark: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    run = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).start(_train, str(go), True)
    now = _once(run, lambda now: [rank["step"] for rank in now["ranks"]] == [5, 5] and len(now["lines"]) == 2)
    assert (now["version"], now["state"], now["stage"], now["name"]) == (1, "running", "local", "_train")
    for rank in now["ranks"]:
        assert (rank["state"], rank["of"], rank["values"]["lr"]) == ("running", 20, 0.1)
        assert 0.5 < rank["rate"] < 2
    assert now["losses"][-1] == [5, 0.2]
    assert sorted(now["lines"]) == ["[rank 0] <b>hello</b> of 0", "[rank 1] <b>hello</b> of 1"]
    go.touch()
    with pytest.raises(TrainingError):
        run.result(60)
    end = run.snapshot()
    assert (end["state"], end["failure"]["rank"], end["failure"]["kind"]) == ("failed", 1, "exception")
    assert "<script>" in end["failure"]["traceback"]
    phases = [phase["name"] for phase in end["phases"]]
    # Both ends may have come at the same time.
    assert phases[3:] in (["ending the ranks"], [])
    assert phases[:3] == ["waiting for tasks", "starting ranks", "training"]
    assert end["ended"] is not None
    counts = end["counts"]
    assert (counts["ranks.started"], counts["ranks.running"], counts["ranks.failed"]) == (2, 0, 1)
    assert counts["logs.lines"] >= 2


def test_a_run_that_failed_before_its_hub_was_open_has_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise OSError("no port is free")

    run = fake_run(monkeypatch, tmp_path)
    assert (run.snapshot()["state"], run.snapshot()["failure"]) == ("waiting", None)
    monkeypatch.setattr(FakeHub, "__init__", refuse)
    with pytest.raises(OSError, match="no port"):
        run.drive()
    end = run.snapshot()
    assert (end["state"], end["failure"]["cause"]) == ("failed", "no port is free")
    assert end["ended"] is not None


def _wait_for_each_other(go: str) -> None:
    import os
    import time as clock

    import torch
    import torch.distributed as dist

    dist.init_process_group("phalanx")
    deadline = clock.monotonic() + 90
    over = torch.zeros(1)
    while not over and clock.monotonic() < deadline:
        if dist.get_rank() == 1:
            clock.sleep(0.3)
            over += os.path.exists(go)
        dist.all_reduce(over)
    dist.destroy_process_group()


def test_a_rank_that_waits_for_another_is_in_collectives_and_the_other_is_not(
    spark: Any, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    run = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).start(
        _wait_for_each_other, str(go)
    )

    def shares_differ(now: dict[str, Any]) -> bool:
        shares = [rank["collective_share"] for rank in now["ranks"]]
        return len(shares) == 2 and None not in shares and shares[0] > 0.5 > shares[1]

    _once(run, shares_differ)
    go.touch()
    run.result(90)
