"""`Inputs`: the data of a run, as the run knows it. It comes before the hub, may fail the run, and changes what ranks
get; so it is no observer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Inputs(Protocol):
    """The data sets of one run, from their preparation to their removal."""

    def run(self) -> dict[str, Any]:
        """Prepares them; their packed indexes, by name. Raises `TrainingError`, also where it was cancelled."""
        ...

    def again(self) -> dict[str, Any]:
        """The indexes for a later attempt, in which what has gone is there again."""
        ...

    def placed(self, attempt: int, hosts: Iterable[str], spec: Callable[[], bytes]) -> None:
        """The nodes of an attempt are on these hosts; `spec` makes what the hub tells a task that serves data."""
        ...

    def carried(self, attempt: int, host: str) -> None:
        """The data of a host is served."""
        ...

    def cancel(self) -> None:
        """Ends `run`; waits for nothing. Called from any thread."""
        ...

    def remove(self) -> None:
        """Removes what was prepared; the run is over. Again is harmless."""
        ...
