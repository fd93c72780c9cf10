"""`run_local`: a function's run without Spark; and which GPUs are here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from phalanx import TrainingError, _native, run_local
from phalanx.launch import gpus

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def place(more: int = 0) -> tuple[int, int, int]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("phalanx")
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(os.environ["RANK"]) + more, dist.get_world_size(), int(total.item())


def test_a_function_has_its_arguments_and_every_rank_a_result() -> None:
    assert run_local(place, 5, num_processes=2, logs="off") == (5, 2, 2)
    run = run_local(place, num_processes=2, wait=False, more=7)
    assert run.results(60) == [(7, 2, 2), (8, 2, 2)]
    assert run.snapshot()["state"] == "succeeded"


def test_a_second_run_has_the_pool_of_the_first() -> None:
    forks = []
    for warm in (None, None, False):
        run_local(len, "abc", num_processes=2, warm=warm)
        forks.append(_native.pool_usage()[2])
    assert _native.pool_usage()[0] == 1
    assert [forks[1] - forks[0], forks[2] - forks[1]] == [1, 0], "LAUNCH-6"


def test_a_failure_is_raised_with_its_cause() -> None:
    def fail() -> None:
        raise KeyError("label")

    with pytest.raises(TrainingError, match="KeyError: 'label'") as told:
        run_local(fail, num_processes=2)
    assert isinstance(told.value.__cause__, KeyError)


def test_an_exception_with_a_long_text_is_told_as_one_and_not_restarted() -> None:
    def fail() -> None:
        raise RuntimeError("begins" + "y" * 5_000_000 + "ends")

    with pytest.raises(TrainingError) as told:
        run_local(fail, num_processes=2, max_restarts=1, logs="off")
    error = told.value
    assert (error.kind, error.exception_type, error.restarts) == ("exception", "RuntimeError", 0)
    assert error.message.startswith(f"rank {error.rank} (")
    assert "RuntimeError: beginsyyy" in error.traceback
    assert error.traceback.rstrip().endswith("yyyends")
    assert len(str(error)) < 1_000_000


def test_a_result_with_shards_of_dtensors_comes_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def train(whole: bool) -> Any:
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

        dist.init_process_group("gloo")
        rows = torch.arange(8.0)
        mesh, flat = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (2, 1))
        spread = distribute_tensor(rows, mesh, [Shard(0)])
        on_each = [
            distribute_tensor(rows, mesh, [Replicate()]),
            distribute_tensor(rows, flat, [Replicate(), Shard(0)]),
        ]
        value = {"on each": on_each, "whole": spread.full_tensor()}
        if not whole:
            model = torch.nn.Linear(4, 2)
            torch.distributed.tensor.distribute_module(
                model,
                mesh,
                lambda _, part, mesh: part.register_parameter("weight", sharded(part.weight, mesh)),
            )
            value |= {"spread": (spread, spread), "model": model}
        dist.destroy_process_group()
        return value

    def sharded(weight: Any, mesh: Any) -> Any:
        import torch
        from torch.distributed.tensor import Shard, distribute_tensor

        return torch.nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))

    assert run_local(train, True, num_processes=2, logs="off")["whole"].tolist() == list(range(8))
    assert "DTensor" not in caplog.text, "RANK-39"
    run = run_local(train, False, num_processes=2, logs="off", wait=False)
    assert run.result(100)["spread"][0].to_local().tolist() == [0, 1, 2, 3]
    assert len(run.results(100)) == 2
    (told,) = [record for record in caplog.records if "DTensor" in record.getMessage()]
    assert told.levelname == "WARNING", "RANK-39"
    assert "Rank 0's result has only rank 0's shard of 2 DTensors" in told.getMessage()
    assert "full_tensor()" in told.getMessage()
    assert "full_state_dict=True" in told.getMessage()


def test_nothing_of_pyspark_is_imported_and_a_distributor_still_needs_a_session(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, phalanx\nphalanx.set_result(os.environ['WORLD_SIZE'])\n")
    script = f"""
import sys, phalanx
assert phalanx.run_local({str(tmp_path / "train.py")!r}, num_processes=2, warm=False) == "2"
print([name for name in sys.modules if name.startswith(("pyspark", "py4j"))], "torch" in sys.modules)
try:
    phalanx.TorchDistributor(2, use_gpu=False)
except RuntimeError as refused:
    print(refused)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    seen, refused = done.stdout.splitlines()
    assert seen == "[] False", "LAUNCH-5, LAUNCH-3"
    assert refused.startswith("TorchDistributor needs an active SparkSession")


@pytest.mark.parametrize(
    ("wrong", "error", "sentence"),
    [
        ({"num_processes": 0}, ValueError, "num_processes"),
        ({"use_gpu": True}, RuntimeError, "the run needs 1 GPU; this host has no GPUs"),
        ({"max_restarts": -1}, ValueError, "maxRestarts"),
        ({"conf": {"spark.app.name": "x"}}, ValueError, "spark.app.name is not a Phalanx setting"),
        ({"env": {"A": 1}}, TypeError, "the names and values of env have to be str"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_starts(
    wrong: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        run_local(place, **wrong)


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("", []),
        ("0", ["0"]),
        ("3, 1", ["3", "1"]),
        ("0,-1,1", ["0"]),
        ("-1", []),
        ("GPU-8a,MIG-aa", ["GPU-8a", "MIG-aa"]),
    ],
)
def test_cudas_variable_says_which_gpus_are_here(
    monkeypatch: pytest.MonkeyPatch, visible: str, found: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.gpus_here() == found


LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a6b)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-9f01)
  MIG 1g.5gb      Device  0: (UUID: MIG-11aa)
  MIG 1g.5gb      Device  1: (UUID: MIG-22bb)
GPU 2: NVIDIA T4 (UUID: GPU-77cc)
"""


def test_a_card_that_mig_divides_is_its_parts() -> None:
    assert gpus.of_listing(LISTING) == ["GPU-5a6b", "MIG-11aa", "MIG-22bb", "GPU-77cc"]
    assert gpus.of_listing("No devices were found\n") == []


def test_a_host_whose_driver_does_not_answer_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(gpus, "_ANSWER_S", 0.2)
    with pytest.raises(RuntimeError, match="nvidia-smi -L can't list the GPUs of this host"):
        gpus.listed()


def test_a_driver_that_is_broken_is_told_and_no_reason_to_be_silent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Driver/library version mismatch'\nexit 18\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpus.listed() == []
    assert "nvidia-smi -L lists no GPU, and says: Driver/library version mismatch" in caplog.text


def test_a_lease_ends_with_its_run_and_a_forked_child_has_no_part_of_it() -> None:
    cards = [f"GPU-{os.getpid()}-{number}" for number in (1, 2)]
    first = gpus.GpuLease(cards, 1)
    child = os.fork()
    if child == 0:
        os._exit(len(first._held))
    assert os.waitpid(child, 0)[1] == 0
    second = gpus.GpuLease(cards, 1)
    assert [*first.gpus, *second.gpus] == cards
    with pytest.raises(
        RuntimeError, match="the run needs 1 GPU; this host has 2 GPUs, of which 2 are in use"
    ):
        gpus.GpuLease(cards, 1)
    first.release()
    first.release()
    assert gpus.GpuLease(cards, 1).gpus == cards[:1]
    second.release()


def test_a_run_that_failed_has_given_its_gpus_back(monkeypatch: pytest.MonkeyPatch) -> None:
    card = f"GPU-{os.getpid()}-run"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", card)

    def visible(fails: bool) -> str:
        if fails:
            raise ValueError("no")
        return os.environ["CUDA_VISIBLE_DEVICES"]

    for _ in range(2):
        with pytest.raises(TrainingError):
            run_local(visible, True, warm=False)
    assert run_local(visible, False, warm=False) == card
    assert run_local(visible, False, warm=False, use_gpu=False) == ""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == card, "the caller's own"
