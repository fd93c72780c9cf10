"""`PhalanxCallback` for the `Trainer` of Hugging Face's transformers.

>>> from phalanx.integrations.transformers import PhalanxCallback
>>> trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[PhalanxCallback])
"""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

from ..rank.notices import Notice, Preempted, preempted
from .step_report import StepReport


class PhalanxCallback(TrainerCallback):  # type: ignore[misc]
    """Reports each training step, so that the driver knows how far the rank is: for `run.status`, `run.reports`, slow
    ranks and hangs.

    It reports `global_step` and how many steps there will be, the epoch, and the loss when the `Trainer` logs it, which
    displays show until the next one. Where a host of the run is to go (`phalanx.preempted`), it has the `Trainer` save
    a checkpoint and raises `phalanx.Preempted`, so that the run starts again elsewhere. Outside a rank it does nothing.
    """

    def __init__(self) -> None:
        self._report = StepReport()
        self._notice: Notice | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """The `Trainer` has the loss of all ranks only here, every `logging_steps`."""
        if logs is not None and "loss" in logs:
            self._tell(state, logs["loss"])

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A step of the optimizer is done."""
        self._tell(state, None)
        self._notice = preempted(state.global_step)
        if self._notice is not None:
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A checkpoint is saved, in all ranks."""
        if self._notice is not None:
            raise Preempted(state.global_step, self._notice)

    def _tell(self, state: Any, loss: float | None) -> None:
        self._report(state.global_step, of=state.max_steps or None, loss=loss, epoch=state.epoch or 0.0)
