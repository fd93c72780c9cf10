"""What the driver has seen of a run: each rank's newest output and reports.

SEEN-1: memory is bounded by `LOG_CHARS` a rank, whatever is written.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

LOG_CHARS = 256 << 10

_PREFIX = re.compile(r"\[rank (\d+)\] ?(.*)", re.DOTALL)


class Logs:
    """The newest whole lines of each rank, from the text of the live view."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[str]] = {}
        self._chars: dict[int, int] = {}

    def take(self, text: str) -> None:
        """Takes text that was shown: lines with their rank in front, and progress bars, which end in no line feed."""
        for shown in text.split("\n")[:-1]:
            match = _PREFIX.match(shown.rpartition("\r")[2])
            if match is None:
                continue
            rank, line = int(match[1]), match[2].rstrip() if "\r" in shown else match[2]
            lines = self._lines.setdefault(rank, deque())
            lines.append(line)
            chars = self._chars.get(rank, 0) + len(line) + 1
            while chars > LOG_CHARS and len(lines) > 1:
                chars -= len(lines.popleft()) + 1
            self._chars[rank] = chars

    def of(self, rank: int) -> str:
        """What is kept of a rank's output."""
        return "".join(f"{line}\n" for line in tuple(self._lines.get(rank, ())))


class Stacks(dict[int, str]):
    """The stacks of all ranks' threads, by rank; as text, equal ones once with their ranks."""

    def __init__(self, stacks: dict[int, str], text: str) -> None:
        super().__init__(stacks)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(self._text)


def report(step: int, values: str) -> dict[str, Any]:
    """A rank's report: its step and what else it told."""
    return {"step": step, **(json.loads(values) if values else {})}
