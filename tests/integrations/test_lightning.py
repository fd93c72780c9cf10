"""Lightning's `Trainer` in ranks, as its documents and pyspark's say: strategies, logs, a kill, a step that fails."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor, TrainingError
from support.tiers import whole

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("warm_imports")]
RANKS, EPOCHS, STEPS = 2, 3, 12
"""Each rank has four batches in an epoch."""
LOCAL: dict[str, Any] = {"local_mode": True, "use_gpu": False}


def places(over: str) -> dict[str, int]:
    """As pyspark's documents have it."""
    return {"devices": RANKS, "num_nodes": 1} if over == "local" else {"devices": 1, "num_nodes": RANKS}


def model(lightning: Any, misdeed: Any = None) -> Any:
    import torch

    class Model(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

        def configure_model(self) -> None:
            if type(self.trainer.strategy).__name__ == "ModelParallelStrategy":
                from torch.distributed.fsdp import fully_shard

                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, number: int) -> Any:
            if misdeed is not None and self.global_rank == 1:
                misdeed(self.global_step)
            loss = (self.net(batch) - batch.sum(1, keepdim=True)).square().mean()
            self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

        def train_dataloader(self) -> Any:
            data = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
            return torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)

    return Model()


def trainer(lightning: Any, folder: str, callbacks: Any = (), **options: Any) -> Any:
    from phalanx.integrations.lightning import PhalanxCallback

    options = {"strategy": "ddp", "logger": False, "enable_checkpointing": False, **options}
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[PhalanxCallback(), *callbacks],
        default_root_dir=folder,
        log_every_n_steps=1,
        enable_model_summary=False,
        **options,
    )


def weights(trained: Any) -> list[float]:
    values: list[float] = []
    for parameter in trained.net.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        values += whole.detach().flatten().tolist()
    return values


def by_strategy(folder: str, places: dict[str, int], sharding: str, backend: str) -> list[float]:
    import lightning
    import torch.distributed as dist
    from lightning.pytorch.callbacks import TQDMProgressBar
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

    given = None if backend == "gloo" else backend
    strategy: Any = DDPStrategy(process_group_backend=given)
    if sharding == "fsdp":
        strategy = ModelParallelStrategy(
            data_parallel_size=RANKS, tensor_parallel_size=1, process_group_backend=given
        )
    lightning.seed_everything(1)
    logger = CSVLogger(folder, name="logs")
    trains = trainer(lightning, folder, [TQDMProgressBar()], strategy=strategy, logger=logger, **places)
    trained = model(lightning)
    trains.fit(trained)
    assert dist.get_backend() == backend
    return weights(trained)


@pytest.fixture(scope="module")
def expected(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The weights by DDP over gloo."""
    folder = str(tmp_path_factory.mktemp("expected"))
    found: list[float] = TorchDistributor(RANKS, **LOCAL).run(
        by_strategy, folder, places("local"), "ddp", "gloo"
    )
    return found


@whole("another library")
def test_a_rank_has_lightning_from_its_pool(expected: list[float], is_warm: Callable[[], bool]) -> None:
    assert expected, "in a run that waited for the pool"
    assert TorchDistributor(RANKS, **LOCAL).run(is_warm)


# A run has one group: torch reads the addresses of an earlier group of gloo from the job's store, under torchrun, too.
@whole("another library")
@pytest.mark.parametrize(("sharding", "backend"), [("ddp", "phalanx"), ("fsdp", "gloo"), ("fsdp", "phalanx")])
def test_every_strategy_trains_to_the_same_weights_with_logs_a_bar_and_reports(
    over: str,
    ranks: Callable[..., TorchDistributor],
    sharding: str,
    backend: str,
    expected: list[float],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ranks().start(by_strategy, str(tmp_path), places(over), sharding, backend)
    for found in run.results(120):
        assert found == pytest.approx(expected, abs=1e-5)
    [metrics] = tmp_path.glob("logs/*/metrics.csv")
    assert len(metrics.read_text().splitlines()) == 1 + STEPS, "rank 0 logs, and nobody else"
    for rank in range(RANKS):
        report = run.reports[rank]
        assert (report["step"], report["epoch"]) == (STEPS, EPOCHS - 1)
        assert isinstance(report["loss"], float)
    shown = capsys.readouterr().out
    assert "[rank 0] Epoch 2" in shown, "the bar of rank 0"
    assert "[rank 1] Epoch" not in shown


def resumed(folder: str, places: dict[str, int], kill_at: int | None) -> tuple[int, list[float]]:
    import signal

    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def misdeed(step: int) -> None:
        if step == kill_at and attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    lightning.seed_everything(1)
    saves = ModelCheckpoint(dirpath=folder, save_last=True, save_top_k=0)
    trains = trainer(lightning, folder, [saves], enable_checkpointing=True, **places)
    trained = model(lightning, misdeed)
    last = os.path.join(folder, "last.ckpt")
    trains.fit(trained, ckpt_path=last if os.path.exists(last) else None)
    return attempt, weights(trained)


@whole("another library")
def test_a_training_that_is_killed_in_an_epoch_ends_with_the_weights_of_an_undisturbed_one(
    over: str, ranks: Callable[..., TorchDistributor], tmp_path: Path
) -> None:
    (tmp_path / "calm").mkdir()
    attempt, expected = TorchDistributor(RANKS, **LOCAL).run(
        resumed, str(tmp_path / "calm"), places("local"), None
    )
    assert attempt == 0
    rough = ranks(max_restarts=1, grace=5)
    attempt, values = rough.run(resumed, str(tmp_path / "rough"), places(over), 6)
    assert attempt == 1
    assert values == expected


def failing(folder: str, places: dict[str, int]) -> None:
    import lightning

    def misdeed(step: int) -> None:
        if step == 5:
            raise KeyError("no such column")

    trainer(lightning, folder, **places).fit(model(lightning, misdeed))


@whole("another library")
def test_a_step_that_fails_names_its_rank_and_its_line(
    over: str, ranks: Callable[..., TorchDistributor], tmp_path: Path
) -> None:
    with pytest.raises(TrainingError) as caught:
        ranks(grace=5).run(failing, str(tmp_path), places(over))
    error = caught.value
    assert (error.kind, error.rank, error.exception_type) == ("exception", 1, "KeyError")
    assert isinstance(error.__cause__, KeyError)
    assert error.traceback is not None
    assert re.search(r'test_lightning\.py", line \d+, in misdeed\s+raise KeyError', error.traceback)


def by_the_other_name(folder: str) -> tuple[str, list[str]]:
    import phalanx.integrations.lightning as integration
    import pytorch_lightning

    trains = trainer(pytorch_lightning, folder, devices=RANKS, enable_progress_bar=False)
    trains.fit(model(pytorch_lightning))
    reported = [
        type(one).__mro__[-2].__module__
        for one in trains.callbacks
        if isinstance(one, integration.PhalanxCallback)
    ]
    return type(trains).__module__.partition(".")[0], reported


@whole("another library")
def test_pytorch_lightning_is_the_same_by_another_name(tmp_path: Path) -> None:
    run = TorchDistributor(RANKS, **LOCAL).start(by_the_other_name, str(tmp_path))
    name, callbacks = run.result(200)
    assert name == "pytorch_lightning"
    assert callbacks == ["pytorch_lightning.callbacks.callback"], "LIBRARY-4"
    assert run.reports[0]["step"] == STEPS
