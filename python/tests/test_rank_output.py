"""A rank's whole output: by range, while it runs and afterwards, from wherever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor
from phalanx.driver.rank_output import (
    PIECE_BYTES,
    NotThereError,
    Piece,
    Read,
    from_files,
    from_text,
    output,
    whole_output,
)
from support.programs import eventually

pytestmark = pytest.mark.timeout(100)
LINES = 60_000


def text_of(rank: int) -> str:
    return "".join(f"rank {rank} line {i} ä\n" for i in range(LINES))


def writes_much(folder: str) -> None:
    import os
    import time

    rank = os.environ["RANK"]
    print("".join(f"rank {rank} line {i} ä\n" for i in range(60_000)), end="", flush=True)  # as text_of
    open(f"{folder}/written-{rank}", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    print("the end")


def all_of(read: Read, start: int = 0, size: int | None = None) -> bytes:
    return b"".join(output(read, start, size))


def test_all_of_a_rank_s_output_comes_from_its_host_while_it_runs_and_from_its_files_afterwards(
    spark: Any, tmp_path: Path
) -> None:
    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False, logs="off")
    run = distributor.start(writes_much, str(tmp_path))
    try:
        eventually("both have written", 60, lambda: len(list(tmp_path.glob("written-*"))) == 2)
        whole = text_of(1)
        assert len(whole) > 4 * len(run.logs(1)) > 0
        eventually("all of it is in the file", 20, lambda: run.logs(1, 0) == whole)
        data = whole.encode()
        for (start, size), part in {
            (100, 50): data[100:150],
            (-20, None): data[-20:],
            (-20, 5): data[-20:-15],
        }.items():
            assert run.logs(1, start, size) == part.decode(errors="replace")
        assert run.logs(1, len(data)) == run.logs(1, 5, 0) == ""
        for path, rank in zip(run.download_logs(tmp_path / "logs"), range(2), strict=True):
            assert Path(path).read_text() == text_of(rank)
        with pytest.raises(ValueError, match="has the ranks 0 to 1, and no rank 2"):
            run.logs(2, 0)
        with pytest.raises(ValueError, match="size is -1, but has to be 0 or more"):
            run.logs(0, 0, -1)
    finally:
        (tmp_path / "go").touch()
    run.result(60)
    assert run.logs(0, 0) == text_of(0) + "the end\n"
    assert run.logs(0, -8) == "the end\n"


def test_what_a_run_s_directory_has_is_read_when_the_run_is_over(spark: Any, tmp_path: Path) -> None:
    def speaks() -> None:
        print("hello")

    spark.conf.set("spark.phalanx.logs.directory", str(tmp_path))
    try:
        distributor = TorchDistributor(num_processes=1, local_mode=True, use_gpu=False)
        distributor.run(speaks)
    finally:
        spark.conf.unset("spark.phalanx.logs.directory")
    [log] = tmp_path.glob("phalanx-*/rank-0.log")
    log.write_text("as it was copied\n")
    assert distributor.last_run is not None
    assert distributor.last_run.logs(0, 3) == "as it was copied\n"[3:]


def test_output_is_read_in_pieces_up_to_where_it_ended_at_first() -> None:
    whole = bytes(i % 251 for i in range(3 * PIECE_BYTES + 10))
    asked: list[tuple[int, int]] = []

    def read(start: int, most: int) -> Piece:
        asked.append((start, most))
        begin = max(len(whole) + start, 0) if start < 0 else start
        grown = len(whole) + 1000 * (len(asked) - 1)
        return Piece(begin, grown, "", whole[begin : begin + most])

    assert all_of(read) == whole, "OUTPUT-1"
    assert all(most <= PIECE_BYTES for _, most in asked), "OUTPUT-1"
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
    assert all_of(read) == told + b"0123456789", "OUTPUT-2"
    assert all_of(read, 0, 50) == b"[phalanx] 50 bytes of output are no longer kept\n", "OUTPUT-2"
    assert all_of(read, 98, 4) == b"[phalanx] 2 bytes of output are no longer kept\n01", "OUTPUT-2"


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
                raise NotThereError("its node has ended")
            return Piece(0, 2 * PIECE_BYTES, "", b"x" * most)

        return read

    told = b"[phalanx] these are the newest lines that the driver has, no more: its host did not answer within 10 s\n"
    assert b"".join(whole_output([no_host], "hello\n", 0, None)) == told + b"hello\n", "OUTPUT-3"
    assert b"".join(whole_output([no_host], "hello\n", -3, None)) == told + b"lo\n", "OUTPUT-3"
    assert b"".join(whole_output([no_host], "", 0, None)) == b"", "OUTPUT-3"
    assert b"".join(whole_output([no_host, lambda: from_text("there")], "", 0, None)) == b"there"
    broken = b"".join(whole_output([breaks, lambda: from_text("not this")], "", 0, None))
    assert broken.endswith(b"x\n[phalanx] the rest of the output can't be had: its node has ended\n"), (
        "OUTPUT-3"
    )
