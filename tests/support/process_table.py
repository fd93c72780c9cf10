"""All processes of this machine by one look at /proc, which tests take many times a second.

psutil reads it once for each process whose children it is asked for: to find the guards among 150 processes so took
30 ms of a processor, after each test.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Entry(NamedTuple):
    """What the table has of a process."""

    parent: int
    name: str
    """Its first fifteen bytes."""
    has_ended: bool
    """Whether it is a zombie."""


def processes() -> dict[int, Entry]:
    """Every process by its id, from `/proc/PID/stat`, see proc(5)."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            descriptor = os.open(f"/proc/{name}/stat", os.O_RDONLY)
        except OSError:  # it is gone
            continue
        try:
            # More than the fields that are wanted, of which the second may hold anything, in parentheses.
            stat = os.read(descriptor, 256)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        begin, end = stat.index(b"("), stat.rindex(b")")
        state, parent = stat[end + 2 :].split(None, 2)[:2]
        found[int(name)] = Entry(int(parent), stat[begin + 1 : end].decode(errors="replace"), state == b"Z")
    return found


def children(table: dict[int, Entry], pid: int) -> list[int]:
    """The processes whose parent this one is."""
    return [child for child, entry in table.items() if entry.parent == pid]


def descendants(table: dict[int, Entry], pid: int) -> list[int]:
    """The processes that come from this one, and still hang on it; parents before their children."""
    by_parent: dict[int, list[int]] = {}
    for child, entry in table.items():
        by_parent.setdefault(entry.parent, []).append(child)
    found = [pid]
    for one in found:
        # Each once: while the table was read, a process may have taken the id of one that it comes from.
        found += by_parent.pop(one, [])
    return found[1:]
