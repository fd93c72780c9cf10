"""The drawings in a run's page: the phases as a bar, the loss as a curve. HTML and SVG, without a script."""

from __future__ import annotations

from html import escape
from typing import Any

from . import words

COLORS = {
    "waiting": "#8a8f98",
    "running": "#3b82c4",
    "restarting": "#c98a1b",
    "succeeded": "#2f9e5b",
    "finished": "#2f9e5b",
    "failed": "#d1453b",
    "cancelled": "#8a6fb0",
    "stopped": "#8a6fb0",
}
"""By the states of runs and of ranks; all others have that of `failed`."""

_PHASES = {
    "waiting for tasks": "#8a8f98",
    "starting ranks": "#c98a1b",
    "training": "#3b82c4",
    "ending the ranks": "#8a6fb0",
}
_OTHERS = ("#2a9d8f", "#7b6fd0", "#b8659b", "#5f8f3e")

# How wide the thinnest phase is, in percent: one can point at it.
_LEAST_PERCENT = 0.6
# How many of the newest phases are named.
_NAMED = 8

_DOT = "display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:5px"
_WIDTH, _HEIGHT = 300, 56


def timeline(snapshot: dict[str, Any]) -> str:
    """The phases of the run as one bar, with their names below."""
    phases = snapshot["phases"]
    if not phases:
        return ""
    until = snapshot["ended"] or snapshot["time"]
    whole = max(until - phases[0]["start"], 1e-9)
    segments, names = "", []
    for nth, phase in enumerate(phases):
        seconds = max((phase["end"] or until) - phase["start"], 0.0)
        color = _color(phase, nth)
        said = f"{phase['name']}, {words.duration(seconds)}"
        percent = max(seconds / whole * 100, _LEAST_PERCENT)
        style = f"flex:{percent:.2f} 1 0;min-width:2px;background:{color}"
        segments += f'<div title="{escape(said)}" style="{style}"></div>'
        names.append(
            f'<span style="white-space:nowrap;margin-right:14px"><span style="{_DOT};background:{color}"></span>'
            f'{escape(phase["name"])} <span style="opacity:.7">{words.duration(seconds)}</span></span>'
        )
    older = f'<span style="opacity:.7">{len(names) - _NAMED} before, </span>' if len(names) > _NAMED else ""
    return (
        f'<div style="display:flex;height:10px;border-radius:3px;overflow:hidden;gap:1px">{segments}</div>'
        f'<div style="margin-top:3px;font-size:12px">{older}{"".join(names[-_NAMED:])}</div>'
    )


def bar(share: float, color: str) -> str:
    """How much of something is done."""
    percent = min(max(share, 0.0), 1.0) * 100
    return (
        '<div style="height:8px;border-radius:4px;background:rgba(128,128,128,.25);margin-top:3px">'
        f'<div style="height:8px;border-radius:4px;width:{percent:.1f}%;background:{color}"></div></div>'
    )


def sparkline(losses: list[list[float]]) -> str:
    """The loss by step, as a curve with its ends in numbers."""
    if len(losses) < 2:
        return "" if not losses else f"loss {words.number(losses[0][1])}"
    first, last = losses[0][0], losses[-1][0]
    values = [value for _, value in losses]
    least, most = min(values), max(values)
    across, up = max(last - first, 1), (most - least) or 1.0
    pad = 3.0
    points = " ".join(
        f"{pad + (step - first) / across * (_WIDTH - 2 * pad):.1f},"
        f"{pad + (most - value) / up * (_HEIGHT - 2 * pad):.1f}"
        for step, value in losses
    )
    return (
        '<div style="display:flex;align-items:center;gap:12px">'
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="loss" '
        'style="background:rgba(128,128,128,.1);border-radius:4px;flex:none">'
        f'<polyline points="{points}" fill="none" stroke="{COLORS["running"]}" stroke-width="1.6" '
        'stroke-linejoin="round"/></svg>'
        f"<div>loss <b>{words.number(values[-1])}</b>"
        f'<div style="opacity:.7;font-size:12px">{words.number(least)} to {words.number(most)}, '
        f"steps {first:.0f} to {last:.0f}</div></div></div>"
    )


def _color(phase: dict[str, Any], nth: int) -> str:
    if phase.get("kind") == "restart":
        return COLORS["failed"]
    return _PHASES.get(phase["name"]) or _OTHERS[nth % len(_OTHERS)]
