"""What ranks tell while they run, as the caller sees it: stacks and reports."""

from __future__ import annotations

import json
from typing import Any


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
