"""Ranks that make no progress: what is told of them, and the same for ranks that do, on demand."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from phalanx import TrainingError, UnavailableResult
from support.programs import eventually
from support.tiers import whole

pytestmark = pytest.mark.timeout(180)


@pytest.mark.behaviour
def test_a_hang_ends_with_the_stacks_of_all_ranks(distributor: Any) -> None:
    def train() -> None:
        import os
        import threading

        def waits_for_a_lock_that_nobody_gives_back() -> None:
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()

        import torch.distributed as dist

        dist.init_process_group("gloo")
        if os.environ["RANK"] == "1":
            waits_for_a_lock_that_nobody_gives_back()
        dist.barrier()

    distributor.options = distributor.options.with_changes(hang_timeout=4)
    with pytest.raises(TrainingError, match="made progress for 4") as told:
        distributor.run(train)
    error = told.value
    assert error.kind == "hang"
    assert "in waits_for_a_lock_that_nobody_gives_back" in error.stacks
    assert "in barrier" in error.stacks
    assert error.stacks in str(error) or "What the ranks' threads were doing" in str(error)
    in_barrier, hung = (report.state for report in error.ranks)
    assert hung == "stopped"
    # It may see the other's end before its own comes.
    assert re.fullmatch(r"stopped|raised RuntimeError: .*", in_barrier), in_barrier


@whole("another hang")
def test_a_hang_leaves_what_torchs_flight_recorder_has_of_all_ranks_beside_their_logs(
    stage: Any, tmp_path: Path
) -> None:
    import pickle

    def train() -> None:
        import os

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        other = dist.new_group()
        dist.all_reduce(torch.ones(3))
        dist.barrier(other)
        # In one group the two would meet, and gloo may refuse their sizes before anything hangs.
        if os.environ["RANK"] == "0":
            dist.all_reduce(torch.ones(5))
        dist.barrier(other)

    stage.options = stage.options.with_changes(hang_timeout=10)
    stage.spark.conf.set("spark.phalanx.logs.directory", str(tmp_path))
    try:
        with pytest.raises(TrainingError) as told:
            stage.run(train)
    finally:
        stage.spark.conf.unset("spark.phalanx.logs.directory")
    assert told.value.kind == "hang"
    [folder] = tmp_path.iterdir()
    dumps = [pickle.loads((folder / f"flight-recorder-{rank}").read_bytes()) for rank in (0, 1)]
    last = [dump["entries"][-1] for dump in dumps]
    assert [entry["profiling_name"] for entry in last] == ["gloo:all_reduce", "gloo:barrier"], "RANK-12"
    assert {entry["collective_seq_id"] for entry in last} == {2}, "RANK-12"
    assert {path.name for path in folder.iterdir() if not path.name.startswith("rank-")} == {
        "flight-recorder-0",
        "flight-recorder-1",
    }


@whole("another cause of a hang")
def test_a_stopped_process_is_told_from_a_stuck_one(spark: Any, tmp_path: Path) -> None:
    from phalanx import TorchDistributor

    def train(folder: str) -> None:
        import os
        import time

        with open(f"{folder}/{os.environ['RANK']}.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{folder}/{os.environ['RANK']}.new", f"{folder}/{os.environ['RANK']}")
        time.sleep(600)

    distributor = TorchDistributor(2, use_gpu=False, hang_timeout=4)
    run = distributor.start(train, str(tmp_path))
    path = tmp_path / "1"
    eventually("rank 1 runs", 60, path.exists)
    os.kill(int(path.read_text()), signal.SIGSTOP)
    with pytest.raises(TrainingError, match=r"rank 1 .* hangs: .*; its process is stopped") as told:
        run.result(120)
    assert "(its process is stopped)" in told.value.stacks
    assert "in train" in told.value.stacks


def test_stacks_phase_reports_and_logs_while_it_runs(spark: Any, tmp_path: Path) -> None:
    from phalanx import TorchDistributor

    def train(folder: str) -> int:
        import os
        import time

        import phalanx

        def waits_here() -> None:
            while not os.path.exists(f"{folder}/go"):
                time.sleep(0.05)

        print("hello from", os.environ["RANK"])
        phalanx.report(step=120, loss=0.5)
        waits_here()
        return int(os.environ["RANK"])

    run = TorchDistributor(2, use_gpu=False).start(train, str(tmp_path))
    eventually("step 120 is told", 60, lambda: run.status == "training, step 120" and len(run.reports) == 2)
    assert run.reports == {0: {"step": 120, "loss": 0.5}, 1: {"step": 120, "loss": 0.5}}
    eventually("output is seen", 60, lambda: run.logs(1) == "hello from 1\n")
    stacks = run.stacks()
    assert set(stacks) == {0, 1}
    assert (run.logs(1, 0), run.logs(0, -2)) == ("hello from 1\n", "0\n"), "RUN-12"
    paths = run.download_logs(tmp_path / "logs")
    assert [Path(path).read_text() for path in paths] == ["hello from 0\n", "hello from 1\n"]
    assert "in waits_here" in stacks[0]
    told = run.profile(0.2, [0, 1], tmp_path / "profile.json")
    assert told.ranks == [0, 1]
    assert "waits_here" in Path(told.path).read_text()
    assert str(stacks).startswith("ranks 0-1:\n"), str(stacks)
    (tmp_path / "go").touch()
    assert run.results(60) == [0, 1]
    assert run.status == "over"
    with pytest.raises(RuntimeError, match="is not running"):
        run.stacks()


def test_ranks_that_ended_well_leave_their_results_in_the_error(spark: Any) -> None:
    from phalanx import TorchDistributor

    def train() -> str:
        import os
        import time

        if os.environ["RANK"] == "1":
            time.sleep(2)
            raise ValueError("late")
        return "early"

    with pytest.raises(TrainingError, match="ValueError: late") as told:
        TorchDistributor(2, use_gpu=False).run(train)
    assert told.value.results == ["early", UnavailableResult("rank 1 left no result")]


@pytest.mark.behaviour
def test_a_rank_saves_its_work_when_it_is_cancelled(distributor: Any, tmp_path: Path) -> None:
    def train(folder: str) -> None:
        import os
        import signal
        import sys
        import time

        from phalanx import checkpoint

        def save(_number: int, _frame: object) -> None:
            print("saving")
            if os.environ["RANK"] == "0":
                checkpoint.save("state", 7, directory=folder)
            print("saved")
            sys.exit(0)

        signal.signal(signal.SIGTERM, save)
        open(f"{folder}/ready-{os.environ['RANK']}", "w").close()
        time.sleep(600)

    from phalanx import checkpoint

    distributor.options = distributor.options.with_changes(grace=60)
    run = distributor.start(train, str(tmp_path))
    eventually("both ranks run", 90, lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    run.cancel()
    with pytest.raises(TrainingError) as told:
        run.result(100)
    assert told.value.kind == "cancelled"
    assert checkpoint.latest(directory=str(tmp_path)) == (7, "state")
    assert "saved\n" in run.logs(0)
    assert "saved\n" in run.logs(1)
