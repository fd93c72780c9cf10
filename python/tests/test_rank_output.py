"""A rank's whole output: by range, while it runs and afterwards, from wherever it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from phalanx.run.rank_output import (
    PIECE_BYTES,
    NotThereError,
    Piece,
    Read,
    from_files,
    from_text,
    output,
    whole_output,
)

pytestmark = pytest.mark.timeout(100)


def all_of(read: Read, start: int = 0, size: int | None = None) -> bytes:
    return b"".join(output(read, start, size))


def test_output_is_read_in_pieces_up_to_where_it_ended_at_first() -> None:
    whole = bytes(i % 251 for i in range(3 * PIECE_BYTES + 10))
    asked: list[tuple[int, int]] = []

    def read(start: int, most: int) -> Piece:
        asked.append((start, most))
        begin = max(len(whole) + start, 0) if start < 0 else start
        grown = len(whole) + 1000 * (len(asked) - 1)
        return Piece(begin, grown, "", whole[begin : begin + most])

    assert all_of(read) == whole, "RUN-12"
    assert all(most <= PIECE_BYTES for _, most in asked), "RUN-12"
    asked.clear()
    assert all_of(read, 5, PIECE_BYTES + 5) == whole[5 : PIECE_BYTES + 10]
    asked.clear()
    assert all_of(read, -7, 3) == whole[-7:-4]
    asked.clear()
    assert all_of(read, -(10**9)) == whole


def test_a_gap_is_told_in_its_place() -> None:
    def read(start: int, most: int) -> Piece:
        if start < 100:
            return Piece(100, 110, "are no longer kept", b"0123456789"[:most])
        return Piece(start, 110, "", b"0123456789"[start - 100 :][:most])

    told = b"[phalanx] 100 bytes of output are no longer kept\n"
    assert all_of(read) == told + b"0123456789", "RUN-13"
    assert all_of(read, 0, 50) == b"[phalanx] 50 bytes of output are no longer kept\n", "RUN-13"
    assert all_of(read, 98, 4) == b"[phalanx] 2 bytes of output are no longer kept\n01", "RUN-13"


def test_the_files_of_the_newest_stage_are_one_output(tmp_path: Path) -> None:
    for name, text in [
        ("rank-1.log", "old"),
        ("rank-1-attempt-2.log.1", "first half, "),
        ("rank-1-attempt-2.log", "second half"),
        ("rank-11.log", "another's"),
        ("rank-1-attempt-10.log.part", "no log"),
    ]:
        (tmp_path / name).write_text(text)
    read = from_files(1, [str(tmp_path / "nowhere"), str(tmp_path)])
    assert all_of(read) == b"first half, second half"
    assert all_of(read, 6, 10) == b"half, seco"
    assert all_of(read, -4) == b"half"
    with pytest.raises(NotThereError):
        from_files(2, [str(tmp_path)])


def test_where_no_place_has_it_the_newest_lines_come_with_the_reason() -> None:
    def no_host() -> Read:
        raise NotThereError("its host did not answer within 10 s")

    def breaks() -> Read:
        def read(start: int, most: int) -> Piece:
            if start > 0:
                raise NotThereError("its task has ended")
            return Piece(0, 2 * PIECE_BYTES, "", b"x" * most)

        return read

    told = b"[phalanx] these are only the newest lines, which the driver has: its host did not answer within 10 s\n"
    assert b"".join(whole_output([no_host], "hello\n", 0, None)) == told + b"hello\n", "RUN-14"
    assert b"".join(whole_output([no_host], "hello\n", -3, None)) == told + b"lo\n", "RUN-14"
    assert b"".join(whole_output([no_host], "", 0, None)) == b"", "RUN-14"
    assert b"".join(whole_output([no_host, lambda: from_text("there")], "", 0, None)) == b"there"
    broken = b"".join(whole_output([breaks, lambda: from_text("not this")], "", 0, None))
    assert broken.endswith(b"x\n[phalanx] the rest of the output can't be read: its task has ended\n"), (
        "RUN-14"
    )
