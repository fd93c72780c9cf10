"""A host that is to go, and trainings of the libraries above torch: they save, and go on where they were."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from phalanx import run_local
from support.tiers import whole

pytestmark = [pytest.mark.timeout(240), whole("other libraries")]
STEPS = 120


def go(folder: str, step: int) -> None:
    """The training is at a step: early in its first attempt its host is to go. Steps take a while."""
    import time

    if step == 10 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        open(os.path.join(folder, "go"), "w").close()
    time.sleep(0.05)


def conf(folder: Path) -> dict[str, str]:
    """The program that says so."""
    program = folder / "notice.py"
    program.write_text(
        "import os, time\n"
        f"while not os.path.exists({str(folder / 'go')!r}):\n"
        "    time.sleep(0.02)\n"
        'print(\'{"seconds": 100, "reason": "spot"}\', flush=True)\n'
        "time.sleep(600)\n"
    )
    return {"spark.phalanx.notice.command": f"exec {sys.executable} {program}", "spark.phalanx.grace": "5s"}


def lightning_trains(folder: str) -> tuple[int, int]:
    """From which step the last attempt went on, and how far it came."""
    import lightning
    import torch
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from phalanx.integrations.lightning import PhalanxCallback

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1)
            self.first = -1

        def on_train_start(self) -> None:
            self.first = self.global_step

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            go(folder, self.global_step)
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self) -> torch.utils.data.DataLoader[torch.Tensor]:
            return torch.utils.data.DataLoader(torch.ones(64, 2), batch_size=4)

    saves: list[Callback] = [ModelCheckpoint(dirpath=folder, save_last=True, save_top_k=0)]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=STEPS,
        max_epochs=-1,
        callbacks=[PhalanxCallback(), *saves],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model, last = Model(), os.path.join(folder, "last.ckpt")
    trainer.fit(model, ckpt_path=last if os.path.exists(last) else None)
    return model.first, trainer.global_step


def transformers_trains(folder: str) -> tuple[int, int]:
    import torch
    from phalanx.integrations.transformers import PhalanxCallback
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.net(x).square().mean()}

    began = []

    class Goes(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: object, state: object, control: object, **others: object) -> None:
            began.append(state.global_step)  # type: ignore[attr-defined]

        def on_step_begin(self, args: object, state: object, control: object, **others: object) -> None:
            go(folder, state.global_step)  # type: ignore[attr-defined]

    out = os.path.join(folder, "out")
    options = TrainingArguments(
        output_dir=out, use_cpu=True, max_steps=STEPS, save_strategy="no", report_to="none", disable_tqdm=True
    )
    data = [{"x": torch.ones(2)} for _ in range(4000)]
    trainer = Trainer(model=Model(), args=options, train_dataset=data, callbacks=[Goes(), PhalanxCallback()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(out) if os.path.isdir(out) else None)
    return began[0], trainer.state.global_step


def accelerate_trains(folder: str) -> tuple[int, int]:
    import torch
    from accelerate import Accelerator
    from phalanx.integrations.accelerate import save_if_preempted

    class Step:
        done = 0

        def state_dict(self) -> dict[str, int]:
            return {"done": self.done}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.done = state["done"]

    accelerator, step = Accelerator(), Step()
    model = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.register_for_checkpointing(step)
    saved = os.path.join(folder, "state")
    if os.path.isdir(saved):
        accelerator.load_state(saved)
    first = step.done
    while step.done < STEPS:
        save_if_preempted(accelerator, saved, step.done)
        go(folder, step.done)
        accelerator.backward(model(torch.ones(4, 2)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        step.done += 1
    return first, step.done


@pytest.mark.parametrize("train", [lightning_trains, transformers_trains, accelerate_trains])
def test_a_training_saves_before_its_host_goes_and_goes_on_where_it_was(
    train: object, tmp_path: Path
) -> None:
    run = run_local(train, str(tmp_path), num_processes=2, conf=conf(tmp_path), wait=False)
    first, steps = run.result(200)
    assert 10 < first < STEPS
    assert steps == STEPS
    (restart,) = run.snapshot()["restarts"]
    assert "raised Preempted: left at step" in restart["cause"]
