"""What ranks of a real run leave with the caller: their output, their results, files that they had not closed."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import TorchDistributor, TrainingError, _native
from support import left_open
from support.programs import eventually

pytestmark = pytest.mark.timeout(100)


LINES = 60_000


def text_of(rank: int) -> str:
    return "".join(f"rank {rank} line {i} ä\n" for i in range(LINES))


def writes_much(folder: str) -> None:
    import time

    rank = os.environ["RANK"]
    print("".join(f"rank {rank} line {i} ä\n" for i in range(60_000)), end="", flush=True)  # as text_of
    open(f"{folder}/written-{rank}", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    print("the end")


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
        with pytest.raises(ValueError, match="has no rank 2, only ranks 0 to 1"):
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


def test_a_result_whose_module_only_ranks_have_is_not_lost(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept_by_ranks.py").write_text(
        "class Model:\n    def __init__(self, weight):\n        self.weight = weight\n"
    )

    def train(folder: str) -> Any:
        import sys

        sys.path.insert(0, folder)
        from kept_by_ranks import Model  # type: ignore[import-not-found]

        return Model(phalanx.__name__)

    distributor = TorchDistributor(num_processes=1, local_mode=True, use_gpu=False)
    with pytest.raises(TrainingError) as caught:
        distributor.run(train, str(tmp_path))
    assert "rank 0 succeeded, but its result can't be read back here: ModuleNotFoundError" in str(
        caught.value
    )
    pickled = Path(
        str(caught.value).rpartition("its pickle is ")[2].removesuffix(" until the application ends")
    )
    run = distributor.last_run
    assert run is not None
    assert run.done
    assert run.ranks[0].state == "finished"
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run.result().weight == "phalanx", "RUN-15"
    monkeypatch.setattr(distributor, "last_run", None)
    del run
    assert pickle.loads(pickled.read_bytes()).weight == "phalanx", "RUN-15"
    del sys.modules["kept_by_ranks"]


def test_warm_ranks_leave_nothing_unwritten(spark: Any, tmp_path: Path) -> None:
    def train(text: str, folder: str) -> None:
        import os
        import sys

        own = os.path.join(folder, os.environ["RANK"])
        os.mkdir(own)
        sys.argv = ["", own]
        exec(text, {"__name__": "of a function"})

    _native.end_pools()
    try:
        before = _native.pool_usage()[2]
        distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False, warm=True)
        distributor.run(train, left_open.PROGRAM, str(tmp_path))
        assert _native.pool_usage()[2] > before
    finally:
        _native.end_pools()
    for rank in ("0", "1"):
        left_open.check(tmp_path / rank)
