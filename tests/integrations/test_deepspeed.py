"""DeepSpeed's ranks: their command line and configuration, and training with each stage of ZeRO, on CPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from phalanx import DeepspeedTorchDistributor, TrainingError
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("warm_imports")]


def deepspeed_ranks(over: str, config: Any = None, **options: Any) -> DeepspeedTorchDistributor:
    return DeepspeedTorchDistributor(1, 2, over == "local", False, config, **options)


def options() -> dict[str, Any]:
    import argparse
    import os

    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--deepspeed_config")
    given = parser.parse_args()
    path = given.deepspeed_config
    if path is None or not os.path.exists(path):
        return {"on": given.deepspeed, "path": path}
    with open(path) as file:
        return {
            "on": given.deepspeed,
            "config": file.read(),
            "mode": os.stat(os.path.dirname(path)).st_mode & 0o077,
        }


@whole("another library")
def test_a_function_has_the_options_of_pysparks_class(over: str, tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    file.write_text('{"train_batch_size": 8}')
    for config, expected in (
        (None, {"on": True, "path": None}),
        ({"train_batch_size": 4}, {"on": True, "config": '{"train_batch_size": 4}', "mode": 0}),
        (str(file), {"on": True, "config": '{"train_batch_size": 8}', "mode": 0}),
        ("/only/there.json", {"on": True, "path": "/only/there.json"}),
    ):
        distributor = deepspeed_ranks(over, config)
        assert distributor.run(options) == expected, "LIBRARY-2, LIBRARY-3"
        assert [result == expected for result in distributor.last_run.results()] == [True, True]
        if over != "local":
            break  # the command line is made in one place


@whole("a file, for a function")
def test_a_file_has_them_after_its_own_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, json, phalanx\nphalanx.set_result([*sys.argv[1:-1], json.load(open(sys.argv[-1]))])"
    )
    result = deepspeed_ranks("local", {"zero": 1}).run(str(script), "--lr", 0.1)
    assert result == ["--lr", "0.1", "--deepspeed", "--deepspeed_config", {"zero": 1}]


def test_what_json_can_not_hold_is_refused_before_anything_starts() -> None:
    distributor = deepspeed_ranks("local", {"optimizer": object()})
    with pytest.raises(TypeError, match="deepspeedConfig can't be written as JSON: Object of type object"):
        distributor.run(options)
    assert distributor.last_run is None


def spare_the_compiler(deepspeed: Any) -> None:
    """No shared-memory operation for inference, which DeepSpeed would compile for a minute when it starts."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def zero(stages: list[int]) -> list[dict[int, list[float]]]:
    """The weights after four steps of SGD, without DeepSpeed and with each of its stages."""
    import argparse

    import deepspeed
    import torch

    spare_the_compiler(deepspeed)
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    given = parser.parse_args()

    def model() -> Any:
        torch.manual_seed(7)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))

    def batch(step: int, rank: int) -> Any:
        rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + rank))
        return rows, rows.sum(dim=1, keepdim=True)

    def loss_of(module: Any, rows: Any, targets: Any) -> Any:
        return torch.nn.functional.mse_loss(module(rows), targets)

    plain = model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        (sum(loss_of(plain, *batch(step, rank)) for rank in range(2)) / 2).backward()
        optimizer.step()
    weights = {0: torch.cat([p.detach().flatten() for p in plain.parameters()]).tolist()}
    with open(given.deepspeed_config) as file:
        base = json.load(file)
    for stage in stages:
        module = model()
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            config=base | {"zero_optimization": {"stage": stage}},
        )
        for step in range(4):
            mine = [part.to(engine.device) for part in batch(step, torch.distributed.get_rank())]
            loss = loss_of(engine, *mine)
            engine.backward(loss)
            engine.step()
        with deepspeed.zero.GatheredParameters(list(module.parameters()), enabled=stage == 3):
            weights[stage] = torch.cat(
                [p.detach().float().cpu().flatten() for p in module.parameters()]
            ).tolist()
    return weights


CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "gradient_clipping": 0,  # 1.0 if it isn't given
}


@whole("another library")
def test_each_stage_of_zero_trains_like_one_process(over: str) -> None:
    distributor = deepspeed_ranks(over, CONFIG)
    stages = [1, 2, 3]
    weights = distributor.run(zero, stages)
    for stage in stages:
        assert weights[stage] == pytest.approx(weights[0], abs=1e-5), f"ZeRO {stage}"


@whole("another library")
def test_a_failing_step_names_its_rank_and_line(over: str) -> None:
    def train() -> None:
        import deepspeed
        import torch

        spare_the_compiler(deepspeed)
        module = torch.nn.Linear(2, 1)
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            config={"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True},
        )
        if torch.distributed.get_rank() == 1:
            engine(torch.zeros(1, 3))  # the line at fault
        engine.backward(engine(torch.zeros(1, 2)).sum())

    with pytest.raises(TrainingError) as raised:
        deepspeed_ranks(over).run(train)
    assert (raised.value.rank, raised.value.kind) == (1, "exception")
    assert "engine(torch.zeros(1, 3))  # the line at fault" in str(raised.value)


def train_to_the_end(folder: str, killed: bool) -> tuple[int, list[float]]:
    """The step from which the last attempt went on, and the weights after six steps of ZeRO 2."""
    import os
    import signal

    import deepspeed
    import torch

    spare_the_compiler(deepspeed)
    torch.manual_seed(3)
    module = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.Adam(module.parameters(), lr=0.1),
        config={**CONFIG, "zero_optimization": {"stage": 2}},
    )
    engine.load_checkpoint(folder)
    begin, rank = engine.global_steps, torch.distributed.get_rank()
    for step in range(begin, 6):
        rows = torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + rank))
        if killed and rank == 1 and step == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        engine.backward((engine(rows) - rows.sum(1, keepdim=True)).square().mean())
        engine.step()
        engine.save_checkpoint(folder)
    return begin, module.weight.flatten().tolist()


@whole("another library")
def test_a_killed_rank_goes_on_from_deepspeeds_checkpoint_to_the_same_weights(
    spark: Any, tmp_path: Path
) -> None:
    for name in ("calm", "rough"):
        (tmp_path / name).mkdir()
    begin, weights = deepspeed_ranks("local").run(train_to_the_end, str(tmp_path / "calm"), False)
    assert begin == 0
    distributor = deepspeed_ranks("local", max_restarts=1)
    begin, again = distributor.run(train_to_the_end, str(tmp_path / "rough"), True)
    assert (begin, again) == (3, weights)


def test_each_stage_of_zero_trains_like_one_process_over_nccl(spark: Any) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs two GPUs")
    stages = [1, 2, 3]
    weights = DeepspeedTorchDistributor(2, 1, True, True, CONFIG).run(zero, stages)
    for stage in stages:
        assert weights[stage] == pytest.approx(weights[0], abs=1e-4), f"ZeRO {stage}"
