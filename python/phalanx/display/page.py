"""A run as a piece of HTML: phases, steps, losses, ranks, newest lines, and why it failed.

Plain HTML with inline CSS and SVG, readable on light and on dark.

DISPLAY-5 (text-is-text): whatever comes from ranks, hosts and exceptions is escaped. There is no script.
DISPLAY-6 (bounded): above `FOLDED` ranks groups are shown instead of ranks, `MOST_GROUPS` of them at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from . import words
from .drawings import COLORS, bar, sparkline, timeline

# Above so many ranks those of a host that are in the same state are one.
FOLDED = 64
MOST_GROUPS = 32

_BORDER = "rgba(128,128,128,.35)"
_FAINT = "opacity:.7"
_MONO = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px"
_PRE = (
    f"{_MONO};white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.4;margin:2px 0 0 0;padding:6px 8px;"
    "background:rgba(128,128,128,.1);color:inherit;border:0;border-radius:4px;max-height:24em;overflow:auto"
)


def page(snapshot: dict[str, Any], how_to_end: str = "") -> str:
    """The run as HTML; of one that goes on it says how to end it, if that is told."""
    parts = [
        _head(snapshot),
        f'<span style="{_FAINT}">{escape(how_to_end)}</span>'
        if how_to_end and snapshot["ended"] is None
        else "",
        _failure(snapshot),
        escape(snapshot["waits_for"] or ""),
        timeline(snapshot),
        _steps(snapshot),
        _ranks(snapshot),
        _restarts(snapshot),
        _lines(snapshot),
    ]
    body = "".join(f'<div style="margin-top:8px">{part}</div>' for part in parts[1:] if part)
    return (
        '<div class="phalanx-run" style="font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;'
        f'max-width:920px;border:1px solid {_BORDER};border-radius:6px;padding:10px 14px;margin:4px 0">'
        f"{parts[0]}{body}</div>"
    )


def _head(snapshot: dict[str, Any]) -> str:
    state = snapshot["state"]
    hosts = {rank["host"] for rank in snapshot["ranks"] if rank["host"]}
    facts = [
        _count(snapshot["world_size"], "rank")
        + (f" on {_count(len(hosts), 'host')}" if hosts and not snapshot["ranks_left_out"] else "")
    ]
    if snapshot["stage"]:
        facts.append({"local": "local mode", "jvm": "jvm stage"}.get(snapshot["stage"], "python stage"))
    if snapshot["attempt"]:
        facts.append(f"attempt {snapshot['attempt'] + 1}")
    facts.append(words.duration(words.elapsed(snapshot)))
    color = COLORS.get(state, COLORS["waiting"])
    return (
        f'<span style="display:inline-block;background:{color};color:#fff;border-radius:9px;padding:0 8px;'
        f'font-size:12px;margin-right:8px">{escape(state)}</span><b>{escape(str(snapshot["name"]))}</b>'
        f'<span style="{_FAINT};margin-left:10px">{escape(", ".join(facts))}</span>'
    )


def _steps(snapshot: dict[str, Any]) -> str:
    told = words.progress(snapshot)
    html = ""
    if told is not None:
        share = told.step / told.of if told.of else None
        percent = "" if share is None else f"<b>{min(share, 1.0):.0%}</b>, "
        html += f"<div>{percent}{escape(words.how_far(told))}</div>"
        if share is not None:
            html += bar(share, COLORS.get(snapshot["state"], COLORS["running"]))
    curve = sparkline(snapshot["losses"])
    return html + (f'<div style="margin-top:6px">{curve}</div>' if curve else "")


def _ranks(snapshot: dict[str, Any]) -> str:
    ranks = snapshot["ranks"]
    if not ranks:
        return ""
    marked = words.slowest(snapshot)
    if len(ranks) + snapshot["ranks_left_out"] > FOLDED:
        return _groups(snapshot, marked)
    html, host = "", object()
    for rank in ranks:
        if rank["host"] != host:
            html += "</div>" if html else ""
            host = rank["host"]
            name = escape(host) if host else "no host yet"
            html += f'<div style="margin-top:4px"><div style="{_FAINT};font-size:12px">{name}</div>'
        html += _chip(rank, rank["rank"] in marked)
    return html + "</div>"


def _chip(rank: dict[str, Any], is_slow: bool) -> str:
    color = COLORS.get(rank["state"], COLORS["failed"])
    told = "" if rank["step"] is None else f"step {rank['step']}"
    mark = ' <span title="slower than the others">&#9660; slowest</span>' if is_slow else ""
    values = [f"{name} {_value(value)}" for name, value in rank["values"].items()]
    gpus = [f"GPU {gpu}" for gpu in rank["gpus"]]
    shares = [
        f"{share:.0%} of its time {what}"
        for what, share in (
            ("in collectives", rank["collective_share"]),
            ("waiting for data", rank["data_share"]),
        )
        if share is not None
    ]
    title = ", ".join([rank["state"], *gpus, *shares, *values])
    outline = f"outline:2px solid {COLORS['restarting']};" if is_slow else ""
    return (
        f'<div title="{escape(title)}" style="display:inline-block;vertical-align:top;min-width:82px;{outline}'
        f"border:1px solid {_BORDER};border-left:5px solid {color};border-radius:4px;padding:1px 6px;"
        f'margin:3px 5px 0 0"><b>{rank["rank"]}</b> {escape(_state(rank["state"]))}{mark}'
        f'<div style="{_FAINT};font-size:12px;min-height:1.4em">{escape(told)}</div></div>'
    )


def _groups(snapshot: dict[str, Any], marked: set[int]) -> str:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for rank in snapshot["ranks"]:
        groups.setdefault((rank["host"] or "no host yet", rank["state"]), []).append(rank)
    odd = {key for key, ranks in groups.items() if any(rank["rank"] in marked for rank in ranks)}
    largest = sorted(
        groups.items(), key=lambda each: (each[0][1] == "running", each[0] not in odd, -len(each[1]))
    )
    rows = ""
    for (host, state), ranks in largest[:MOST_GROUPS]:
        steps = [rank["step"] for rank in ranks if rank["step"] is not None]
        span = "" if not steps else f"step {_span(min(steps), max(steps))}"
        slow = [str(rank["rank"]) for rank in ranks if rank["rank"] in marked]
        mark = f"&#9660; slowest: {escape(', '.join(slow[:5]))}" if slow else ""
        color = COLORS.get(state, COLORS["failed"])
        cells = [
            f'<span style="border-left:5px solid {color};padding-left:6px">{escape(host)}</span>',
            escape(_numbers([rank["rank"] for rank in ranks])),
            escape(_state(state)),
            escape(span),
            mark,
        ]
        rows += "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>"
    rest = sum(len(ranks) for _, ranks in largest[MOST_GROUPS:]) + snapshot["ranks_left_out"]
    more = f'<div style="{_FAINT}">and {_count(rest, "more rank")}</div>' if rest else ""
    return f'<table style="border-collapse:collapse;margin:0;font-size:13px">{rows}</table>{more}'


_CELL = "text-align:left;padding:1px 16px 1px 0;border:0;background:none"


def _restarts(snapshot: dict[str, Any]) -> str:
    said = [
        f"<div>restart {nth} after {words.duration(each['time'] - snapshot['started'])}: {escape(each['cause'])}</div>"
        for nth, each in enumerate(snapshot["restarts"], 1)
    ]
    return "".join(said[-5:])


def _lines(snapshot: dict[str, Any]) -> str:
    if not snapshot["lines"]:
        return ""
    return _details("Newest lines", "\n".join(snapshot["lines"]), is_open=False)


def _failure(snapshot: dict[str, Any]) -> str:
    failure = snapshot["failure"]
    if failure is None:
        return ""
    said = [_state(failure["kind"])]
    said += [] if failure["rank"] is None else [f"rank {failure['rank']}"]
    said += [f"on {failure['host']}"] if failure["host"] else []
    html = (
        f'<div style="{_FAINT}">{escape(", ".join(said))}</div>'
        f'<div style="font-weight:600;overflow-wrap:anywhere">{escape(failure["cause"])}</div>'
    )
    if failure["traceback"]:
        html += _details("Traceback", failure["traceback"], is_open=True)
    if failure["stacks"]:
        html += _details("What the ranks' threads were doing", failure["stacks"], is_open=False)
    html += _details("The whole story", failure["text"], is_open=False)
    return f'<div style="border-left:5px solid {COLORS["failed"]};padding:2px 0 2px 10px">{html}</div>'


def _details(title: str, text: str, *, is_open: bool) -> str:
    state = " open" if is_open else ""
    return (
        f'<details{state} style="margin-top:4px"><summary style="cursor:pointer">{escape(title)}</summary>'
        f'<pre style="{_PRE}">{escape(text.rstrip())}</pre></details>'
    )


def _state(state: str) -> str:
    return state.replace("_", " ")


def _value(value: Any) -> str:
    return words.number(value) if isinstance(value, int | float) else str(value)


def _count(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' if count != 1 else ''}"


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _numbers(numbers: Iterable[int]) -> str:
    """`ranks 0-7, 12`; of many runs the first."""
    runs: list[list[int]] = []
    for each in sorted(numbers):
        if runs and runs[-1][1] == each - 1:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:8])
    is_one = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"rank{'' if is_one else 's'} {text}" + (", ..." if len(runs) > 8 else "")
