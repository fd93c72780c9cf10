"""Line plots as SVG: a few panels side by side, both axes logarithmic. No library to install."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

COLOURS = ("#0b6e4f", "#c8553d", "#3d5a80", "#8a6d3b", "#7b2d8b")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 340, 250, 56, 34, 14, 34
Lines = Mapping[str, Sequence[tuple[float, float]]]


def write(path: Path, panels: Mapping[str, Lines], x_ticks: Mapping[str, float], y_label: str) -> None:
    """Draws `{title: {name: [(x, y), ...]}}`, two panels a row, all with the same axes."""
    ys = [y for lines in panels.values() for points in lines.values() for _, y in points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}
    rows = -(-len(panels) // 2)
    width, height = 2 * WIDTH, rows * HEIGHT + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for at, (title, lines) in enumerate(panels.items()):
        parts.append(f'<g transform="translate({at % 2 * WIDTH} {at // 2 * HEIGHT})">')
        parts += _panel(title, lines, colours, x_ticks, (low, high), y_label)
        parts.append("</g>")
    for at, name in enumerate(names):
        x, y = LEFT + at * 125, height - 10
        parts.append(
            f'<path d="M{x} {y - 4}h18" stroke="{colours[name]}" stroke-width="2"/>'
            f'<text x="{x + 23}" y="{y}">{escape(name)}</text>'
        )
    path.write_text("\n".join([*parts, "</svg>", ""]))


def _panel(
    title: str,
    lines: Lines,
    colours: Mapping[str, str],
    x_ticks: Mapping[str, float],
    decades: tuple[int, int],
    y_label: str,
) -> list[str]:
    first, last = math.log2(min(x_ticks.values())), math.log2(max(x_ticks.values()))
    low, high = decades

    def across(x: float) -> float:
        return LEFT + (math.log2(x) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(y) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>',
        f'<text x="{LEFT}" y="31" fill="#555">{escape(y_label)}</text>',
    ]
    for decade in range(low, high + 1):
        y = down(10.0**decade)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    for name, value in x_ticks.items():
        parts.append(
            f'<text x="{across(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(name)}</text>'
        )
    for name, points in lines.items():
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in sorted(points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
    return parts
