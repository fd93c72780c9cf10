"""Checkpoints of whole runs: their name, their folder, and what a rank that is killed while all save leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor
from phalanx.checkpoint.place import MAX_NAME_BYTES
from support.tiers import whole

pytestmark = pytest.mark.timeout(200)


def saves_sharded(killed_in: str) -> tuple[Any, ...]:
    """Step 1 is saved; in the first attempt rank 1 dies while it writes its part of step 2."""
    import signal

    import torch
    import torch.distributed as dist
    from phalanx import checkpoint

    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    state = {"alike": torch.zeros(64), "step": 0, f"of {rank}": torch.zeros(64)}
    begin = checkpoint.load_sharded(state)
    found = begin, state["step"], state["alike"].sum().item(), state[f"of {rank}"].sum().item()

    def at(step: int) -> dict[str, Any]:
        own = torch.full((64,), float(step))
        return {"alike": own, "step": step, f"of {rank}": own * (rank + 1)}

    if begin is None:
        checkpoint.save_sharded(at(1), 1)
    if rank == 1 and attempt == "0":
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    if killed_in == "save":
        checkpoint.save_sharded(at(2), 2)
    else:
        checkpoint.save_sharded_async(at(2), 2).result()
    dist.barrier()
    return found, checkpoint.checkpoint_dir()


@whole("ranks, for a writer that is killed")
@pytest.mark.parametrize("killed_in", ["save", "background"])
def test_ranks_resume_from_a_whole_step_after_one_was_killed_while_all_saved(
    spark: Any, tmp_path: Path, killed_in: str
) -> None:
    distributor = TorchDistributor(
        num_processes=2, use_gpu=False, max_restarts=1, checkpoint_dir=tmp_path, checkpoint_name="parts"
    )
    distributor.run(saves_sharded, killed_in)
    assert distributor.last_run is not None
    folder = str(tmp_path)
    assert distributor.last_run.results() == [((1, 1, 64, 64), folder), ((1, 1, 64, 128), folder)], (
        "CHECKPOINT-1"
    )
    names = sorted(os.listdir(tmp_path / "parts"))
    steps = ["step-0000000001"] * 2 + ["step-0000000002"] * 2
    assert [name[:15] for name in names] == ["attempt.json", *steps], "nothing else is left"


def saves_where_groups_are_encrypted() -> Any:
    """As on a host of its own, in a run that encrypts."""
    import torch
    import torch.distributed as dist
    from phalanx import checkpoint

    rank = os.environ["RANK"]
    os.environ.update(PHALANX_ENCRYPTION="on", PHALANX_HOST_RANKS=f"{rank}-{rank}")
    dist.init_process_group("phalanx")
    state = {f"of {rank}": torch.ones(64)}
    checkpoint.save_sharded_async(state, 1).result()
    state[f"of {rank}"].zero_()
    return checkpoint.load_sharded(state), state[f"of {rank}"].sum().item()


@whole("encryption")
def test_ranks_save_in_the_background_where_the_run_encrypts(spark: Any, tmp_path: Path) -> None:
    distributor = TorchDistributor(num_processes=2, use_gpu=False, checkpoint_dir=tmp_path)
    assert distributor.start(saves_where_groups_are_encrypted).results(120) == [(1, 64)] * 2


def cats() -> Any:
    from phalanx import checkpoint

    before = checkpoint.latest()
    checkpoint.save("a cat", 5)
    return before


def dogs() -> Any:
    from phalanx import checkpoint

    return checkpoint.latest()


@whole("as Rust's tests of the names")
def test_runs_of_different_functions_share_a_folder_and_no_checkpoint(spark: Any, tmp_path: Path) -> None:
    distributor = TorchDistributor(use_gpu=False, checkpoint_dir=tmp_path)
    assert [distributor.run(train) for train in (cats, dogs, cats)] == [None, None, (5, "a cat")], (
        "CHECKPOINT-3"
    )
    assert os.listdir(tmp_path) == ["cats"]
    with pytest.raises(ValueError, match="but has to be letters, digits,"):
        TorchDistributor(use_gpu=False, checkpoint_name="../x").run(cats)
    with pytest.raises(ValueError, match=f"but has to be at most {MAX_NAME_BYTES} bytes long"):
        TorchDistributor(use_gpu=False, checkpoint_name="x" * (MAX_NAME_BYTES + 1)).run(cats)
