"""What a training library's callback reports of its steps: as often as it likes, at the cost of a report.

LIBRARY-8 (no-sync): the loss is read from its device twice a second at most, and not at each step, unless the device is
the processor: reading it waits for the device. The steps between are reported without one, so that no loss stands at a
step that isn't its own; displays show the last that was read.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

from ..rank import reporting
from ..rank.pace import REPORT_SECONDS


class StepReport:
    """Reports one training's steps by `phalanx.report`. Outside a rank it does nothing."""

    def __init__(self) -> None:
        self._read_at = -math.inf
        self._last: dict[str, Any] = {}

    def __call__(self, step: int, *, of: int | None = None, loss: Any = None, **values: Any) -> None:
        """This step of so many is done; `loss` is a number, or a tensor of one, or None where the step has none."""
        if not reporting.in_rank():
            return
        now, read = time.monotonic(), {}
        if loss is not None and (_is_here(loss) or now >= self._read_at + REPORT_SECONDS):
            self._read_at = now
            with contextlib.suppress(
                TypeError, ValueError, RuntimeError
            ):  # no number, but something of the user's
                read["loss"] = float(loss.detach() if hasattr(loss, "detach") else loss)
        reporting.report_beside(self._last, step=step, of=of, **read, **values)
        self._last = read or self._last


def _is_here(loss: Any) -> bool:
    """Whether it takes no device to read it."""
    return isinstance(loss, int | float) or getattr(getattr(loss, "device", None), "type", None) == "cpu"
