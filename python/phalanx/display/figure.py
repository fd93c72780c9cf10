"""A run as a figure of matplotlib, which is imported when the first is made."""

from __future__ import annotations

import io
from typing import Any

from .. import _native

Curve = list[tuple[int, float]]


def figure(snapshot: dict[str, Any], curves: dict[int, Curve]) -> Any:
    """The phases of the run, its loss by step, and the step of each rank. `curves` are the losses of ranks; without any
    there is the snapshot's, of one rank.

    Raises `ModuleNotFoundError` without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "run.plot() needs matplotlib: pip install matplotlib", name="matplotlib"
        ) from missing

    class RunFigure(Figure):
        """Shows itself in a notebook, whether or not pyplot was imported."""

        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png", bbox_inches="tight")
            return out.getvalue()

    drawn = RunFigure(figsize=(9, 6.5), layout="constrained")
    phases, losses, steps = drawn.subplots(3, 1, height_ratios=[1.2, 2, 1.5])
    _phases(phases, snapshot)
    _losses(losses, snapshot, curves)
    _steps(steps, snapshot)
    return drawn


def _phases(axes: Any, snapshot: dict[str, Any]) -> None:
    began, until = snapshot["started"], snapshot["ended"] or snapshot["time"]
    names = list(dict.fromkeys(phase["name"] for phase in snapshot["phases"]))
    for phase in snapshot["phases"]:
        seconds = max((phase["end"] or until) - phase["start"], 0.0)
        axes.barh(names.index(phase["name"]), seconds, left=phase["start"] - began, color=_color("running"))
    axes.set_yticks(range(len(names)), [_plain(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(_plain(f"{snapshot['name']}: {snapshot['state']}"))


def _losses(axes: Any, snapshot: dict[str, Any], curves: dict[int, Curve]) -> None:
    if len(curves) > 1:
        for rank, points in curves.items():
            axes.plot(*zip(*points, strict=True), linewidth=1, label=f"rank {rank}")
        axes.legend(fontsize="x-small", ncols=2)
    elif snapshot["losses"]:
        axes.plot(*zip(*snapshot["losses"], strict=True), color=_color("running"))
    else:
        axes.text(0.5, 0.5, "no rank has reported a loss", ha="center", va="center", transform=axes.transAxes)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")


def _steps(axes: Any, snapshot: dict[str, Any]) -> None:
    ranks = snapshot["ranks"]
    colors = [_color(rank["state"]) for rank in ranks]
    axes.bar([rank["rank"] for rank in ranks], [rank["step"] or 0 for rank in ranks], color=colors)
    axes.set_xlabel("rank")
    axes.set_ylabel("step")


def _color(state: str) -> str:
    return _native.STATE_COLORS.get(state, _native.STATE_COLORS["waiting"])


def _plain(text: str) -> str:
    """The text as it is: dollars are no formulas."""
    return text.replace("$", r"\$")
