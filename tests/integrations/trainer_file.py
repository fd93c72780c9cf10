"""A training file as the documents of transformers have it: a tiny model, made from a configuration.

trainer_file.py FOLDER [KILL_AT | fail]
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

STEPS = 12


def train(folder: str, misdeed: str = "") -> dict[str, Any]:
    """Trains for three epochs of four steps, resumes from the newest checkpoint, and does a misdeed in rank 1."""
    import torch
    from phalanx.integrations.transformers import PhalanxCallback
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )
    from transformers.trainer_utils import get_last_checkpoint

    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    class Misdeed(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if int(os.environ.get("RANK", "0")) != 1 or state.global_step != 6 or attempt:
                return
            if misdeed == "fail":
                raise KeyError("no such column")
            if misdeed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

    set_seed(1)
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    data = torch.randint(0, 32, (64, 8), generator=torch.Generator().manual_seed(3))
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=3,
            per_device_train_batch_size=8,
            learning_rate=0.01,
            logging_steps=1,
            save_steps=3,
            report_to="none",
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in data],
        callbacks=[PhalanxCallback, Misdeed],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if os.path.isdir(folder) else None)
    parameters = trainer.model.parameters()
    return {
        "attempt": attempt,
        "ranks": trainer.args.world_size,
        "step": trainer.state.global_step,
        "weights": [value for p in parameters for value in p.detach().flatten().tolist()],
    }


if __name__ == "__main__":
    import phalanx

    phalanx.set_result(train(*sys.argv[1:]))
