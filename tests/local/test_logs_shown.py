"""Which of the ranks' output the caller sees, and what stays of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor, TrainingError
from phalanx.options import Options
from support.programs import eventually


def _speak(fails: bool) -> None:
    import os

    rank = os.environ["RANK"]
    print("epoch 3")
    print(f"I am {rank}")
    if fails and rank == "1":
        raise ValueError("no")


def _wait_for(file: str) -> None:
    """Says that it is here, and ends when there is such a file."""
    import os
    import time

    print("here")
    until = time.monotonic() + 60
    while not os.path.exists(file) and time.monotonic() < until:
        time.sleep(0.02)
    print("gone")


def _shown(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().out.splitlines() if line.startswith("[rank")]


def _ranks(line: str) -> list[int]:
    return [0, 1] if line.startswith("[ranks 0-1] ") else [0]


def test_what_is_shown_is_what_was_asked_for_and_all_of_it_is_kept(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    each = ["[rank 0] I am 0", "[rank 0] epoch 3", "[rank 1] I am 1", "[rank 1] epoch 3"]
    expected: dict[Any, list[str]] = {
        "dedup": each,
        1: ["[rank 1] I am 1", "[rank 1] epoch 3"],
        "off": [],
    }
    for logs, lines in expected.items():
        distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False, logs=logs)
        _shown(capfd)
        distributor.run(_speak, False)
        # On a busy machine a rank's line may come too late to be folded with the other's.
        shown = [
            line.replace("[ranks 0-1] ", f"[rank {rank}] ") for line in _shown(capfd) for rank in _ranks(line)
        ]
        assert sorted(shown) == lines, f"JOB-6: {logs}"
        assert distributor.last_run is not None
        assert distributor.last_run.logs(0) == "epoch 3\nI am 0\n", "JOB-6"
    paths = distributor.last_run.download_logs(tmp_path / "logs")
    assert [Path(path).read_text() for path in paths] == ["epoch 3\nI am 0\n", "epoch 3\nI am 1\n"]
    assert [Path(path).name for path in paths] == ["rank-0.log", "rank-1.log"]


def test_of_errors_only_the_rank_that_failed_is_shown(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False, logs="errors")
    with pytest.raises(TrainingError):
        distributor.run(_speak, True)
    shown = _shown(capfd)
    assert shown[:2] == ["[rank 1] epoch 3", "[rank 1] I am 1"], shown
    assert shown[-1] == "[rank 1] ValueError: no"
    assert not any(line.startswith("[rank 0]") for line in shown), "JOB-6"


def test_ranks_are_given_as_a_number_or_a_list_and_a_wrong_word_is_named(spark: Any) -> None:
    for logs, text in [(0, "0"), ([0, 8], "0,8"), (range(3), "0,1,2"), ("all", "all")]:
        assert Options(logs=logs).settings == {"spark.phalanx.logs": text}
    with pytest.raises(ValueError, match=r"spark\.phalanx\.logs is .*but has to be one of auto, all, dedup"):
        TorchDistributor(num_processes=2, local_mode=True, use_gpu=False, logs="loud").run(_speak, False)


def test_lines_of_runs_at_once_have_the_runs_name(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = [tmp_path / "first", tmp_path / "second"]
    runs = [
        TorchDistributor(num_processes=1, local_mode=True, use_gpu=False).start(_wait_for, str(end))
        for end in ends
    ]
    shown: list[str] = []

    def said(line: str) -> int:
        shown.append(capfd.readouterr().out)
        return "".join(shown).count(line)

    try:
        # Whichever said so before the other one ran has no name in that line.
        eventually("both runs began", 60, lambda: said("here\n") == 2)
        ends[1].touch()
        eventually(
            "a line of two runs has its run's name, DISPLAY-9",
            60,
            lambda: said("[_wait_for 2: rank 0] gone\n"),
        )
        runs[1].result(60)
        ends[0].touch()
        runs[0].result(60)
        eventually("the line of the only one has none, DISPLAY-9", 60, lambda: said("[rank 0] gone\n"))
    finally:
        for run in runs:
            run.cancel()
