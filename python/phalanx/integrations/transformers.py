"""`PhalanxCallback` for the `Trainer` of Hugging Face's transformers.

>>> from phalanx.integrations.transformers import PhalanxCallback
>>> trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[PhalanxCallback])
"""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

from .step_report import StepReport


class PhalanxCallback(TrainerCallback):  # type: ignore[misc]
    """Reports each training step, so that the driver knows how far the rank is: for `run.status`, `run.reports`, slow
    ranks and hangs.

    It reports `global_step` and how many steps there will be, the epoch, and the loss when the `Trainer` logs it, which
    displays show until the next one. Outside a rank it does nothing.
    """

    def __init__(self) -> None:
        self._report = StepReport()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """The `Trainer` has the loss of all ranks only here, every `logging_steps`."""
        if logs is not None and "loss" in logs:
            self._tell(state, logs["loss"])

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A step of the optimizer is done."""
        self._tell(state, None)

    def _tell(self, state: Any, loss: float | None) -> None:
        self._report(state.global_step, of=state.max_steps or None, loss=loss, epoch=state.epoch or 0.0)
