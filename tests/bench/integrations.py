"""A training with Lightning, Accelerate or Transformers' `Trainer`: ours over the jvm stage beside pyspark's class.

    python tests/bench/integrations.py [--quick] [--reps N]

Two ranks on two executors take a few steps, so the time is that of starting: of Spark's tasks, of the ranks, and of the
imports of the library. `first run` is the first `.run()` of a new session, in a process of its own, with executors that
have registered; `next run` is the one after it. With ours `spark.phalanx.warm.imports` names the library. All take
turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import fresh_processes
from launch import await_executors, quiet_builder

RUNS = ("first run", "next run")


def with_lightning() -> int:
    import lightning
    import torch

    class Model(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8))
    return int(trainer.global_step)


def with_accelerate() -> int:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)  # type: ignore[arg-type, var-annotated]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = 0
    for batch in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


def with_transformers() -> int:
    import tempfile

    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            return {"loss": self.net(x).square().mean()}

    with tempfile.TemporaryDirectory() as folder:
        given = TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=4,
            per_device_train_batch_size=8,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        rows: Any = [{"x": row} for row in torch.randn(64, 8)]
        trainer = Trainer(Model(), given, train_dataset=rows)
        return int(trainer.train().global_step)


CASES: dict[str, tuple[Callable[[], int], str]] = {
    "lightning": (with_lightning, "lightning.pytorch"),
    "accelerate": (with_accelerate, "accelerate"),
    "transformers": (with_transformers, "transformers.trainer"),
}


def one(impl: str, case: str) -> dict[str, float]:
    """The seconds of the first runs of a session, in this process."""
    import phalanx
    from pyspark.ml.torch.distributor import TorchDistributor as Incumbent

    train, imports = CASES[case]
    builder = quiet_builder().config("spark.phalanx.warm.imports", imports)
    if impl == "phalanx":
        builder = builder.config(map=phalanx.spark_conf())
    spark = builder.getOrCreate()
    await_executors(spark)
    of: Any = Incumbent if impl == "pyspark" else phalanx.TorchDistributor
    distributor = of(num_processes=2, local_mode=False, use_gpu=False)
    seconds = {}
    for run in RUNS:
        began = time.monotonic()
        steps = distributor.run(train)
        seconds[run] = time.monotonic() - began
        assert steps == 4, f"{impl} took {steps} steps with {case}"
    spark.stop()
    return seconds


if __name__ == "__main__":
    fresh_processes(
        "integrations",
        __doc__,
        one,
        dict.fromkeys(CASES, ("phalanx", "pyspark")),
        {run: run for run in RUNS},
    )
