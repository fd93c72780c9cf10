#!/usr/bin/env python3
"""Says how the parts of `make test` and `make test-all` went: how many cases each had, and where the time is.

    scripts/tests_told.py

Each part (scripts/part) left its times in target/tests, and beside them what its own program told: JUnit's XML, a
number of tests, and the names of those that passed only the second time. They come last, since each is a defect.
"""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

TOLD = Path(__file__).resolve().parents[1] / "target" / "tests"


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def row(name: str, cases: int | str, skipped: int | str, took: float, when: str = "") -> str:
    return f"{name:<24}{cases:>7}{skipped:>9}{minutes(took):>8}  {when}".rstrip()


def folders(report: Path) -> dict[str, list[float]]:
    """By folder of tests: how many cases, how many of them skipped, how many seconds."""
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    for case in ElementTree.parse(report).iter("testcase"):
        numbers = found["/".join(case.get("classname", "").split(".")[:-1])]
        numbers[0] += 1
        numbers[1] += case.find("skipped") is not None
        numbers[2] += float(case.get("time", 0))
    return found


def told_of(part: str) -> list[str]:
    """The rows of a part: its own, and one for each folder of its tests."""
    began, ended = map(int, (TOLD / f"{part}.times").read_text().split())
    start = int((TOLD / "begin").read_text())
    when = f"{minutes(began - start)} to {minutes(ended - start)}"
    report, counts = TOLD / f"{part}.xml", TOLD / f"{part}.counts"
    if counts.exists():
        return [row(part, sum(map(int, counts.read_text().split())), "", ended - began, when)]
    if not report.exists():
        return [row(part, "", "", ended - began, when)]
    by_folder = folders(report)
    cases, skipped, _ = (int(sum(column)) for column in zip(*by_folder.values(), strict=True))
    rows = [row(part, cases, skipped, ended - began, when)]
    if len(by_folder) > 1:
        rows += [
            row(f"  {folder}", int(all_of), int(some), seconds)
            for folder, (all_of, some, seconds) in sorted(by_folder.items())
        ]
    return rows


def main() -> None:
    parts = sorted(TOLD.glob("*.times"), key=lambda path: path.read_text())
    print(
        f"\n{'':<24}{'cases':>7}{'skipped':>9}{'took':>8}  from the beginning (a folder's time is of one processor)"
    )
    for part in parts:
        print("\n".join(told_of(part.stem)))
    print(row("all", "", "", time.time() - int((TOLD / "begin").read_text())))
    second = "".join(path.read_text() for path in sorted(TOLD.glob("*.second")))
    if second:
        print(f"Passed only the second time, which is a defect:\n{second.rstrip()}")


if __name__ == "__main__":
    main()
