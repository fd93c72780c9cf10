"""`RunRequest`: what a run needs, checked and packed. Nothing has started yet.

REQUEST-5 (let-go): when the run is over, it has neither what the ranks were sent nor their variables, which may be
secrets.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .. import _native
    from .payload import Payload
    from .run_profile import RunProfile
    from .settings import Settings


class TaskRows(NamedTuple):
    """Rows that the tasks of the run's own stage have as their input."""

    frame: Any
    """A DataFrame with a partition for each task."""
    data_set: str | None
    """The streamed data set that they are; None for the partitions of `_train_on_dataframe`."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RunRequest:
    """What a run is asked to do."""

    job: _native.Job
    payload: Payload
    settings: Settings
    variables: dict[str, str]
    """What the caller gives the ranks' environment; it may have secrets."""
    endpoint: tuple[str, str]
    """Where the hub binds, and what tasks are told."""
    work_dir: str
    """A folder for files of the run, which ends with this process."""
    rows: TaskRows | None = None
    profile: RunProfile | None = None
    """What the run's tasks take, where that isn't what the application's take."""

    def forget(self) -> None:
        """Lets go of what the ranks were sent: the run is over, and somebody may keep it."""
        self.payload.forget()
        self.variables.clear()
