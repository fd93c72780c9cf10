"""The doctor's report: findings as text, as JSON, and as a table in notebooks."""

from __future__ import annotations

import dataclasses
import html
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .finding import Facts, Finding

_ORDER = {"error": 0, "warning": 1, "ok": 2}
_COLUMNS = 100
_COLOURS = {"error": "#c62828", "warning": "#b26a00", "ok": "#2e7d32"}


@dataclass
class Report:
    """What `phalanx.doctor` found.

    findings    a `Finding` for each thing that was looked at, the worst first
    ok          whether none of them is an error
    hosts       the hosts that were looked at, by Spark's names of them
    links       from whom to whom how many bytes a second went
    facts       what each task found, as it came from its host
    seconds     how long all of it took
    """

    findings: list[Finding]
    hosts: list[str] = field(default_factory=list)
    links: list[tuple[str, str, float]] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list, repr=False)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.findings = sorted(self.findings, key=lambda finding: _ORDER[finding.level])

    @property
    def ok(self) -> bool:
        return all(finding.level != "error" for finding in self.findings)

    def to_json(self) -> str:
        """All of it, as one JSON object."""
        found: dict[str, Any] = {
            "ok": self.ok,
            "seconds": round(self.seconds, 1),
            "hosts": self.hosts,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "links": [
                {"from": source, "to": to, "bytes_per_second": round(rate)} for source, to, rate in self.links
            ],
            "facts": self.facts,
        }
        return json.dumps(found, indent=2)

    def __str__(self) -> str:
        lines = [self._headline()]
        for finding in self.findings:
            where = f" on {finding.host}" if finding.host not in ("", "driver") else ""
            where = " at the driver" if finding.host == "driver" else where
            lines += _wrapped(f"{finding.level:<8}{finding.check}{where}: {finding.means}", " " * 8)
            if finding.do:
                lines += _wrapped(f"{' ' * 8}-> {finding.do}", " " * 11)
        if table := self._matrix():
            lines += ["", "Bandwidth in MB/s, from the host of the row to that of the column:", *table]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="color:{_COLOURS[finding.level]}">{finding.level}</td>'
            + "".join(
                f'<td style="text-align:left">{html.escape(text)}</td>'
                for text in (finding.host or "all", finding.check, finding.means, finding.do)
            )
            + "</tr>"
            for finding in self.findings
        )
        titles = "".join(
            f"<th>{title}</th>" for title in ("", "host", "check", "what it means", "what to do")
        )
        return f"<p>{html.escape(self._headline())}</p><table><tr>{titles}</tr>{rows}</table>"

    def _headline(self) -> str:
        counts = {level: sum(finding.level == level for finding in self.findings) for level in _ORDER}
        told = [
            f"{count} {level}{'s' * (count != 1)}"
            for level, count in counts.items()
            if count and level != "ok"
        ]
        verdict = " and ".join(told) if told else "no errors and no warnings"
        hosts = f"{len(self.hosts)} host{'s' * (len(self.hosts) != 1)}"
        return f"phalanx doctor: {verdict}; {hosts}, {counts['ok']} things in order, {self.seconds:.0f} s"

    def _matrix(self) -> list[str]:
        """Bandwidths as a table, where that is readable."""
        hosts = [host for host in self.hosts if any(host in link[:2] for link in self.links)]
        if not 1 < len(hosts) <= 8:
            return []
        rates = {(source, to): f"{rate / 1e6:.0f}" for source, to, rate in self.links}
        cells = [["", *hosts]]
        cells += [[row, *(rates.get((row, column), "-") for column in hosts)] for row in hosts]
        return _aligned(cells)


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells
    ]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
