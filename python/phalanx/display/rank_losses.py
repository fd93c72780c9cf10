"""The loss of each rank by step, as curves of few points however long a run is.

DISPLAY-9 (bounded): there are curves of the `MOST_RANKS` lowest ranks that tell a loss, of fewer than `MOST_POINTS`
points each. When a curve is full, neighbours become their mean, so that it spans the whole run.
"""

from __future__ import annotations

from typing import Any

MOST_RANKS = 16
MOST_POINTS = 200
# As in `rust/job/src/driver/view/losses.rs`: the first that is there counts.
_NAMES = ("loss", "train_loss", "training_loss")

Curve = list[tuple[int, float]]


class RankLosses:
    """The curves so far."""

    def __init__(self) -> None:
        self._curves: dict[int, _Curve] = {}

    def take(self, rank: int, report: dict[str, Any]) -> None:
        """Takes a report of a rank."""
        loss = next((report[name] for name in _NAMES if name in report), None)
        step = report.get("step")
        if step is None or isinstance(loss, bool) or not isinstance(loss, int | float):
            return
        if rank not in self._curves:
            highest = max(self._curves, default=rank)
            if len(self._curves) >= MOST_RANKS:
                if rank > highest:
                    return
                self._curves = {of: curve for of, curve in self._curves.items() if of != highest}
            self._curves = {**self._curves, rank: _Curve()}
        self._curves[rank].take(step, float(loss))

    def curves(self) -> dict[int, Curve]:
        """By rank: the step and the loss of each point. Any thread may ask."""
        return {rank: curve.points() for rank, curve in sorted(self._curves.items())}


class _Curve:
    def __init__(self) -> None:
        self._points: Curve = []
        self._folded = 1
        self._next: Curve = []

    def take(self, step: int, loss: float) -> None:
        points = self._points
        if points and step <= points[-1][0]:  # after a restart the steps since the checkpoint come again
            points, self._next = [point for point in points if point[0] < step], []
        coming = [*self._next, (step, loss)]
        if len(coming) >= self._folded:
            points, coming = [*points, _mean(coming)], []
        if len(points) >= MOST_POINTS:
            points = [_mean(points[at : at + 2]) for at in range(0, len(points), 2)]
            self._folded *= 2
        self._points, self._next = points, coming

    def points(self) -> Curve:
        return [*self._points, *([_mean(self._next)] if self._next else [])]


def _mean(points: Curve) -> tuple[int, float]:
    return points[-1][0], sum(loss for _, loss in points) / len(points)
