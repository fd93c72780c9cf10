"""A rank's whole output, wherever it is: on the rank's host while its node is there, then in what is left of it.

RUN-12 (piece-by-piece): output of any length is read in pieces of `PIECE_BYTES`, and never held whole here.
RUN-13 (says-what-is-missing): a line that begins with `[phalanx]` stands where bytes are missing.
RUN-14 (never-raises): a host that can't be asked, or doesn't answer, costs bytes and raises nothing.
"""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .. import _native

PIECE_BYTES = 128 << 10
# How long a host may take for one piece.
ANSWER_S = 10.0


class Piece(NamedTuple):
    """A piece of a rank's output."""

    start: int
    """The offset of its first byte: later than what was asked for where bytes are missing."""
    end: int
    """Where the output ends by now."""
    missing: str
    """Why bytes before `start` are missing; empty where none are."""
    data: bytes


class NotThereError(Exception):
    """The output, or the rest of it, can't be had from there."""


# Reads a piece: from an offset, or so many bytes before the end where it is negative; of so many bytes at most.
Read = Callable[[int, int], Piece]


def output(read: Read, start: int, size: int | None) -> Iterator[bytes]:
    """The output from `start` on: `size` bytes, else all up to its end as it was at the first piece."""
    piece = read(start, PIECE_BYTES)
    at = max(piece.end + start, 0) if start < 0 else start
    stop = piece.end if size is None else min(piece.end, at + size)
    while at < stop:
        if piece.start > at:
            gone = min(piece.start, stop) - at
            yield f"[phalanx] {gone} bytes of output {piece.missing or 'are missing'}\n".encode()
        yield piece.data[: max(stop - piece.start, 0)]
        if not piece.data and piece.start <= at:
            return
        at = piece.start + len(piece.data)
        if at < stop:
            piece = read(at, min(PIECE_BYTES, stop - at))


def from_host(hub: _native.Hub, rank: int) -> Read:
    """Reads on the rank's host, by way of its node.

    Raises `NotThereError` where no node has it.
    """

    def read(start: int, most: int) -> Piece:
        try:
            piece = hub.read_output(rank, start, most, ANSWER_S)
        except _native.NativeError as problem:  # the rank hasn't begun, its node is over, or the run is
            raise NotThereError(str(problem)) from None
        if piece is None:
            raise NotThereError(f"its host did not answer within {ANSWER_S:g} s")
        return Piece(*piece)

    return read


def from_files(rank: int, folders: list[str]) -> Read:
    """Reads what a node, or the copy at a run's end, left in one of these folders: the file before and the newest, of
    the newest stage that ran.

    Raises `NotThereError` where there is none.
    """
    for folder in folders:
        found = {_attempt(path, rank): path for path in glob.glob(f"{glob.escape(folder)}/rank-{rank}*.log")}
        if max(found, default=-1) >= 0:
            newest = found[max(found)]
            return _of_files([path for path in (f"{newest}.1", newest) if os.path.exists(path)])
    raise NotThereError("its files are on its host")


def _attempt(path: str, rank: int) -> int:
    """With which attempt the log's node began; -1 where it is another rank's."""
    match = re.fullmatch(rf"rank-{rank}(?:-attempt-(\d+))?\.log", os.path.basename(path))
    return -1 if match is None else int(match[1] or 0)


def _of_files(paths: list[str]) -> Read:
    def read(start: int, most: int) -> Piece:
        try:
            sizes = [os.path.getsize(path) for path in paths]
            end = sum(sizes)
            begin = max(end + start, 0) if start < 0 else start
            data, at = b"", begin
            for path, size in zip(paths, sizes, strict=True):
                if at < size and len(data) < most:
                    with open(path, "rb") as file:
                        file.seek(at)
                        data += file.read(min(most - len(data), size - at))
                at = max(at - size, 0)
        except OSError as problem:
            raise NotThereError(str(problem)) from None
        return Piece(begin, end, "", data)

    return read


def from_text(text: str) -> Read:
    """Reads what the driver has of a rank's output."""
    data = text.encode()

    def read(start: int, most: int) -> Piece:
        begin = max(len(data) + start, 0) if start < 0 else start
        return Piece(begin, len(data), "", data[begin : begin + most])

    return read


def places_of(hub: _native.Hub | None, rank: int, folders: list[str]) -> list[Callable[[], Read]]:
    """Where a rank's output may be, best first: its host, if the hub is open, and these folders."""
    files = functools.partial(from_files, rank, folders)
    return [files] if hub is None else [functools.partial(from_host, hub, rank), files]


def whole_output(
    places: Sequence[Callable[[], Read]], newest: str, start: int, size: int | None
) -> Iterator[bytes]:
    """A rank's output from the first of these places that has it, else of the `newest` lines, which the driver has."""
    why = "the run is over"
    for place in places:
        begun = False
        try:
            for piece in output(place(), start, size):
                begun = True
                yield piece
            return
        except NotThereError as problem:
            why = str(problem)
        if begun:
            yield f"\n[phalanx] the rest of the output can't be read: {why}\n".encode()
            return
    if newest:
        yield f"[phalanx] these are only the newest lines, which the driver has: {why}\n".encode()
        yield from output(from_text(newest), start, size)
