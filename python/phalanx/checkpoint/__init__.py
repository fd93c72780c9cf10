"""Checkpoints that are whole or absent, for training code that resumes after a restart.

CHECKPOINT-1 (whole-or-absent): what is found was written to its end, at whatever moment its writers were killed. In a
folder of a local file system this also holds when the host lost its power: data, then name, then folder are written
through.
CHECKPOINT-2 (one-step): the ranks of a job resume from the same step. If they have no folder in common, `latest` and
the sharded calls raise at their first call, before anything was trained.
CHECKPOINT-3 (own-name): a run finds what runs of its name have saved, and nothing else.
CHECKPOINT-4 (saved-stays): a save never removes what it has just saved.
CHECKPOINT-5 (others-finish): a save never removes what another run may still be writing: what this run's own earlier
attempts left goes at once, what another run left only when it is a day old.

>>> saved = checkpoint.latest()
>>> step, state = saved if saved else (0, None)
"""

from .background import Saving
from .layout import KEEP
from .place import checkpoint_dir
from .preempted import save_if_preempted
from .sharded import load_sharded, save_sharded, save_sharded_async
from .whole import latest, save, save_async

__all__ = [
    "KEEP",
    "Saving",
    "checkpoint_dir",
    "latest",
    "load_sharded",
    "save",
    "save_async",
    "save_if_preempted",
    "save_sharded",
    "save_sharded_async",
]
