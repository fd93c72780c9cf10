"""A run in one line, for a terminal or a file.

DISPLAY-2 (one-line): it has no control characters, whatever ranks report or are called.
"""

from __future__ import annotations

from typing import Any

from . import words

_BAR = 20


def line(snapshot: dict[str, Any], columns: int | None = None) -> str:
    """`train: training  45% |#########           | step 180 of 400, 3.2 steps/s, 1 min 8 s left, loss 0.231, 2 ranks`;
    cut to so many columns."""
    parts = [words.present_phase(snapshot)]
    told = words.progress(snapshot)
    bar = ""
    if told is not None:
        if told.of:
            share = min(told.step / told.of, 1.0)
            bar = f" {share:4.0%} |{'#' * int(share * _BAR):<{_BAR}}|"
        parts.append(words.how_far(told))
    if snapshot["losses"]:
        parts.append(f"loss {words.number(snapshot['losses'][-1][1])}")
    slow = words.slowest(snapshot)
    if slow:
        parts.append(f"slowest rank {min(slow)}")
    ranks = snapshot["world_size"]
    parts.append(f"{ranks} rank{'s' if ranks != 1 else ''}")
    if snapshot["restarts"]:
        parts.append(f"restarts {len(snapshot['restarts'])}")
    parts.append(words.duration(words.elapsed(snapshot)))
    text = f"{snapshot['name']}: {parts[0]}{bar} {', '.join(parts[1:])}"
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if columns is None or len(text) <= columns else text[: max(columns - 1, 0)] + "~"
