"""What a training library's callback reports of its steps: as often as it likes, at the cost of a report.

LIBRARY-8 (no-sync): the loss is read from its device when a report goes out, twice a second at most, and not at each
step: reading it waits for the device.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

from ..rank import reporting


class StepReport:
    """Reports one training's steps by `phalanx.report`. Outside a rank it does nothing."""

    def __init__(self) -> None:
        self._read_at = -math.inf
        self._values: dict[str, Any] = {}

    def __call__(self, step: int, *, of: int | None = None, loss: Any = None, **values: Any) -> None:
        """This step of so many is done; `loss` is a number, or a tensor of one, or None where the step has none."""
        if not reporting.in_rank():
            return
        now = time.monotonic()
        if loss is not None and now >= self._read_at + reporting.REPORT_SECONDS:
            self._read_at = now
            with contextlib.suppress(
                TypeError, ValueError, RuntimeError
            ):  # no number, but something of the user's
                self._values["loss"] = float(loss.detach() if hasattr(loss, "detach") else loss)
        known = {} if of is None else {"of": of}
        reporting.report(step=step, **known, **self._values, **values)
