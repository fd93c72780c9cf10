"""Accelerate under Phalanx: in functions and files, by its own environment, its own test scripts, and its launcher."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import accelerate.test_utils.scripts as scripts
import phalanx
import pytest
from phalanx import TorchDistributor, TrainingError
from support.tiers import whole

pytestmark = [pytest.mark.timeout(200), pytest.mark.usefixtures("warm_imports")]


def train(steps: int, fails: bool = False) -> dict[str, Any]:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size, set_seed

    set_seed(7)
    accelerator = Accelerator()
    features = torch.arange(32.0).reshape(16, 2) / 32
    data = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(data, batch_size=4)
    )

    @find_executable_batch_size(starting_batch_size=4)
    def loop(batch_size: int) -> int:
        done = 0
        while done < steps:
            for x, y in batches:
                loss = torch.nn.functional.mse_loss(model(x), y)
                if fails and accelerator.process_index == 1:
                    raise ValueError(f"no loss in step {done}")
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                done += 1
        return done

    done = loop()
    ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
    weights = [p.detach().float().flatten().tolist() for p in model.parameters()]
    return {
        "done": done,
        "ranks": ranks,
        "precision": accelerator.mixed_precision,
        "weights": weights,
        "kind": str(accelerator.distributed_type),
    }


@whole("another library")
def test_an_accelerator_trains_and_a_failing_step_names_its_rank_and_line(
    ranks: Callable[..., TorchDistributor],
) -> None:
    distributor = ranks(env={"ACCELERATE_MIXED_PRECISION": "bf16"}, grace=0)
    results = distributor.start(train, 4).results(120)
    with pytest.raises(TrainingError) as raised:
        distributor.run(train, 4, fails=True)
    for rank in results:
        assert rank == results[0], "all ranks have the same weights"
        assert (rank["done"], rank["ranks"], rank["precision"]) == (4, [0, 1], "bf16")
        assert "MULTI_CPU" in rank["kind"]
    error = raised.value
    assert (error.kind, error.rank, error.exception_type) == ("exception", 1, "ValueError")
    assert 'raise ValueError(f"no loss in step {done}")' in error.traceback
    assert isinstance(error.__cause__, ValueError)


def resumed(folder: str, killed: bool) -> tuple[int, list[float]]:
    """From which epoch the last attempt went on, and the weights after four."""
    import signal

    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(7)
    accelerator = Accelerator()
    features = torch.randn(32, 3)
    data = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    batches = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    saved = sorted(Path(folder).glob("epoch-*"))
    if saved:
        accelerator.load_state(str(saved[-1]))
    for epoch in range(len(saved), 4):
        for number, (x, y) in enumerate(batches):
            first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
            if killed and first_attempt and (accelerator.process_index, epoch, number) == (1, 2, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        accelerator.save_state(f"{folder}/epoch-{epoch}")
    return len(saved), [value for p in model.parameters() for value in p.detach().flatten().tolist()]


@whole("another library")
def test_a_training_that_is_killed_in_an_epoch_goes_on_from_accelerates_state_to_the_same_weights(
    ranks: Callable[..., TorchDistributor], tmp_path: Path
) -> None:
    for name in ("calm", "rough"):
        (tmp_path / name).mkdir()
    begin, weights = ranks().run(resumed, str(tmp_path / "calm"), False)
    assert begin == 0
    assert ranks(max_restarts=1, grace=5).run(resumed, str(tmp_path / "rough"), True) == (2, weights)


@whole("Accelerate's own tests")
@pytest.mark.parametrize(
    ("name", "says"), [("test_sync", "Test Distributed `no_sync`"), ("test_script", "Num processes: 2")]
)
def test_accelerates_own_script_passes_as_a_training_file(
    spark: Any, name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(scripts.__file__).with_name(f"{name}.py")
    TorchDistributor(2, local_mode=True, use_gpu=False, grace=0).run(str(path))
    assert says in capsys.readouterr().out


@whole("Accelerate's own tests")
def test_accelerates_own_operations_pass(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def operations() -> None:
        from accelerate import PartialState
        from accelerate.test_utils.scripts import test_ops

        PartialState(cpu=True)  # the script asks for GPUs
        test_ops.main()

    TorchDistributor(2, local_mode=True, use_gpu=False, grace=0).run(operations)
    assert "Num processes: 2" in capsys.readouterr().out


@whole("another way to start")
def test_code_for_accelerates_notebook_launcher_runs_by_replacing_that_call(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2")

    def trains(steps: int, factor: float) -> Any:
        import os

        from accelerate import Accelerator

        accelerator = Accelerator()
        return (
            steps * factor,
            accelerator.num_processes,
            accelerator.mixed_precision,
            accelerator.gradient_accumulation_steps,
            os.environ["WORLD_SIZE"],
        )

    answer = phalanx.notebook_launcher(
        trains, (3, 0.5), num_processes=2, mixed_precision="bf16", use_port="0", local_mode=True
    )
    assert answer == (1.5, 2, "bf16", 2, "2")


@whole("another library")
def test_the_launcher_has_accelerates_parameters_and_refuses_what_can_not_be() -> None:
    theirs = inspect.signature(accelerate.notebook_launcher).parameters
    ours = inspect.signature(phalanx.notebook_launcher).parameters
    assert {name: p.default for name, p in theirs.items()} == {
        name: ours[name].default for name in list(ours)[: len(theirs)]
    }, "LIBRARY-1"
    assert list(ours)[: len(theirs)] == list(theirs), "LIBRARY-1"
    for wrong in ({}, {"num_processes": 2, "node_rank": 1}, {"num_processes": 2, "mixed_precision": "fp7"}):
        with pytest.raises(ValueError, match=r"num_processes=|node_rank is 1|mixed_precision mode"):
            phalanx.notebook_launcher(os.getpid, **wrong)
