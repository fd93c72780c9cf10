"""DataFrames that reach the ranks as blocks: equal steps, every row once an epoch, and resuming with other ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import TorchDistributor, TrainingError
from support.tiers import differs

pytestmark = [pytest.mark.timeout(180), pytest.mark.behaviour]

ROWS = 103


def rows(spark: Any) -> Any:
    """Three partitions with rows and three without."""
    frame = spark.range(0, ROWS, 1, 3).selectExpr("id", "cast(id as float) / 2 as half", "string(id) as name")
    return frame.union(spark.range(0, 9, 1, 3).where("id < 0").selectExpr("id", "float(id)", "string(id)"))


def train(steps: int, state: Any, uneven: str) -> dict[str, Any]:
    """Some steps from a state on; what each had, and the state then."""
    import os

    import phalanx

    loader = phalanx.data("train").loader(batch_size=8, shuffle=True, seed=4, uneven=uneven)
    if state is not None:
        loader.load_state_dict(state)
    taken = []
    for step, batch in enumerate(loader, 1):
        assert batch["half"].tolist() == [i / 2 for i in batch["id"].tolist()]
        assert batch["name"] == [str(i) for i in batch["id"].tolist()]
        counts = batch.get("mask", [True] * 8)
        taken.append([i for i, does in zip(batch["id"].tolist(), counts, strict=True) if does])
        if step == steps:
            break
    whole = [batch["id"].tolist() for batch in phalanx.data("eval").loader(batch_size=5)]
    folder = os.path.dirname(phalanx.data("train")._source._index.files[0])
    assert os.stat(folder).st_mode & 0o777 == 0o700
    with open(f"{os.environ['PHALANX_RANK_DIR']}/blocks") as file:
        assert json.load(file)["nodes"] == 0, "NODE-46: all is on one host, where no node serves"
    return {"taken": taken, "state": loader.state_dict(), "eval": whole, "folder": folder}


def in_order(results: list[dict[str, Any]]) -> list[int]:
    steps = zip(*(result["taken"] for result in results), strict=True)
    return [row for step in steps for part in step for row in part]


def test_every_row_comes_once_an_epoch_and_other_ranks_go_on_with_the_next(
    distributor: Any, spark: Any, tmp_path: Path
) -> None:
    kept = phalanx.stored(spark.range(5), f"simplecache::file://{tmp_path}/eval")
    data = {"train": rows(spark), "eval": phalanx.replicated(kept)}
    first = distributor.start(train, 3, None, "drop", data=data).results(120)
    assert [len(result["taken"]) for result in first] == [3, 3], "FEED-22"
    assert first[0]["state"] == first[1]["state"]
    assert [result["eval"] for result in first] == [[[0, 1, 2, 3, 4]]] * 2
    assert "data prepared" in [phase.name for phase in distributor.last_run.phases]
    # The next run prepares the same rows anew, and takes the rest of the epoch, and then another one.
    rest = distributor.start(train, 0, first[0]["state"], "pad", data=data).results(120)
    seen = in_order(first) + in_order(rest)
    assert sorted(seen) == list(range(ROWS)), "FEED-23"
    alone = TorchDistributor(1, local_mode=True, use_gpu=False)
    alone.run(train, 0, first[0]["state"], "pad", data=data)
    (one,) = alone.last_run.results()
    assert in_order([one]) == in_order(rest), "FEED-23"
    folders = {result["folder"] for result in [*first, *rest, one]}
    assert not any(map(os.path.exists, folders)), "FEED-32"
    assert len(list(tmp_path.glob("eval/phalanx-data-*/"))) == 1, "FEED-35"


def test_a_training_that_fails_leaves_no_block(stage: Any, spark: Any, tmp_path: Path) -> None:
    told = str(tmp_path / "told")

    def fail(path: str) -> None:
        import os

        import phalanx

        if os.environ["RANK"] == "0":
            with open(path, "w") as file:
                file.write(os.path.dirname(phalanx.data("train")._source._index.files[0]))
            with open(path) as file:
                assert os.path.isdir(file.read())
            phalanx.data("eval")

    with pytest.raises(TrainingError, match="the run has no data set 'eval'; it has 'train'"):
        stage.run(fail, told, data={"train": spark.range(10)})
    assert not Path(Path(told).read_text()).exists(), "FEED-32"


@differs("connect", why="a client has no files of its own")
def test_a_file_has_the_data_too(stage: Any, spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import phalanx\n"
        "loader = phalanx.data('train').loader(batch_size=5)\n"
        "phalanx.set_result([batch['id'].tolist() for batch in loader])\n"
    )
    results = stage.start(str(file), data={"train": spark.range(10)}).results(120)
    assert sorted(row for [batch] in results for row in batch) == list(range(10))
