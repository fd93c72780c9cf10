"""`PhalanxCallback` for Lightning's `Trainer`, by both of its names: `lightning` and `pytorch_lightning`.

>>> from phalanx.integrations.lightning import PhalanxCallback
>>> trainer = Trainer(devices=1, num_nodes=num_processes, strategy="ddp", callbacks=[PhalanxCallback()])

LIBRARY-4 (either-name): this module imports neither package. A callback belongs to the package that is loaded when it
is made, or to both.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from typing import Any

from ..checkpoint import checkpoint_dir
from ..rank.notices import Preempted, preempted
from .step_report import StepReport

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")

_made: dict[tuple[type, ...], type] = {}


class PhalanxCallback:
    """Reports each training step, so that the driver knows how far the rank is: for `run.status`, `run.reports`, slow
    ranks and hangs.

    It reports optimizer steps (`trainer.global_step`) and how many there will be, the epoch, and the loss where
    `training_step` returns one. Where a host of the run is to go (`phalanx.preempted`), it saves `last.ckpt`, in the
    folder of the trainer's own checkpoints, or else in `phalanx.checkpoint_dir()`, and raises `phalanx.Preempted`, so
    that the run starts again elsewhere. Outside a rank it does nothing.

    Making one raises `ModuleNotFoundError` where neither package is installed.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> PhalanxCallback:
        return object.__new__(_callback_of(cls, _callbacks()))

    def __init__(self) -> None:
        self._report = StepReport()
        self._of: int | None = None
        self._asked: int | None = None

    def __reduce__(self) -> Any:
        # Its class is made where it is used; a function that travels brings the callback along as the class that the
        # user knows, and what the callback holds.
        own = next(each for each in type(self).__mro__ if each not in _made.values())
        getstate = getattr(self, "__getstate__", None)  # each object has it from Python 3.11 on
        return own.__new__, (own,), vars(self) if getstate is None else getstate()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The training begins, and its loader is known."""
        with suppress(Exception):  # infinite, or another Lightning
            self._of = int(trainer.estimated_stepping_batches)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is done; a step of the optimizer may take several."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._report(trainer.global_step, of=self._of, loss=loss, epoch=trainer.current_epoch)
        self._leave_if_preempted(trainer)

    def _leave_if_preempted(self, trainer: Any) -> None:
        step = trainer.global_step
        if step == self._asked:  # the optimizer takes its step after more batches
            return
        self._asked = step
        notice = preempted(step)
        if notice is not None:
            own = getattr(trainer.checkpoint_callback, "dirpath", None)
            trainer.save_checkpoint(os.path.join(own or checkpoint_dir(), "last.ckpt"))
            raise Preempted(step, notice)


def _callbacks() -> tuple[type, ...]:
    """`Callback` of each package that is loaded; where none is, of the one that is installed."""
    loaded = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    if not loaded:
        installed = [name for name in _PACKAGES if importlib.util.find_spec(name.partition(".")[0])]
        loaded = [importlib.import_module((installed or _PACKAGES)[0])]
    return tuple(module.Callback for module in loaded)


def _callback_of(cls: type, callbacks: tuple[type, ...]) -> type:
    """A subclass of `cls`, always the same one, that the packages take for a callback of theirs."""
    if issubclass(cls, callbacks):
        return cls
    own = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    bases = (cls, *callbacks)
    return _made.setdefault(bases, type(cls.__name__, bases, own))
