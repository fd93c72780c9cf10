"""Data sets when something is lost: a rank, an executor with its blocks, a run that is given up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import phalanx
import pytest
from phalanx import TrainingError
from support.programs import eventually, executors
from support.tiers import whole

pytestmark = pytest.mark.timeout(240)

ROWS = 90


def train(folder: str, killer: str) -> list[list[int]]:
    """Takes three steps, writes down what it had, and is lost, or waits for it; the next attempt goes on."""
    import json
    import os
    import signal
    import time

    import phalanx

    rank = os.environ["RANK"]
    loader = phalanx.data("train").loader(batch_size=4, shuffle=True, seed=2, uneven="pad")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        steps = iter(loader)
        taken = [next(steps)["id"].tolist() for _ in range(3)]
        with open(f"{folder}/{rank}.new", "w") as file:
            json.dump({"taken": taken, "state": loader.state_dict()}, file)
        os.rename(f"{folder}/{rank}.new", f"{folder}/{rank}")
        while not (killer == "itself" and os.path.exists(f"{folder}/0") and os.path.exists(f"{folder}/1")):
            time.sleep(0.02)
        if rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    with open(f"{folder}/{rank}") as file:
        loader.load_state_dict(json.load(file)["state"])
    return [batch["id"][batch["mask"]].tolist() for batch in loader]


def before(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


@pytest.fixture
def two_ranks_that_restart(two_ranks: Callable[..., Any]) -> Callable[[str], Any]:
    return lambda face: two_ranks(face, max_restarts=1)


def began(folder: Path) -> None:
    eventually("both ranks have begun", 120, lambda: all((folder / rank).exists() for rank in "01"))


def lose_an_executor(run: Any) -> None:
    """Kills one, and removes its blocks, as Spark does where it has the time to."""
    for file in run._inputs._indexes["train"].files[:2]:
        os.unlink(file)
    executors(os.getpid())[0].kill()


FRAMES: dict[str, Callable[[Any], Any]] = {
    "settled": lambda rows: rows,
    "repartition": lambda rows: rows.repartition(5),
    "join": lambda rows: rows.hint("merge").join(rows.hint("merge"), "id"),
    "groupBy": lambda rows: rows.groupBy("id").count().drop("count"),
    "orderBy": lambda rows: rows.repartition(3).orderBy(rows.id * 0.5),
    "cached": lambda rows: rows.repartition(4).cache(),
}
_other = whole("another plan")


@pytest.mark.parametrize(
    ("writer", "plan", "killer"),
    [
        pytest.param("jvm", "settled", "itself", marks=whole("another cause")),
        ("jvm", "repartition", "executor"),
        *(
            pytest.param(writer, plan, "executor", marks=_other)
            for writer, plan in [
                *(("python", plan) for plan in FRAMES),
                *(("jvm", plan) for plan in ("settled", "join", "groupBy", "orderBy", "cached")),
            ]
        ),
    ],
)
def test_ranks_that_start_again_go_on_with_the_very_next_row(
    writer: str,
    plan: str,
    killer: str,
    two_ranks_that_restart: Callable[[str], Any],
    spark: Any,
    tmp_path: Path,
) -> None:
    frame = FRAMES[plan](spark.range(0, ROWS, 1, 5))
    run = two_ranks_that_restart(writer).start(train, str(tmp_path), killer, data={"train": frame})
    began(tmp_path)
    if killer == "executor":
        lose_an_executor(run)
    rest = run.results(180)
    whole = [batch["id"].tolist() for batch in phalanx.data(frame).loader(batch_size=1, rank=0, world_size=1)]
    frame.unpersist()
    parts = [result["taken"] + left for result, left in zip(before(tmp_path), rest, strict=True)]
    assert {len(part) for part in parts} == {-(-ROWS // 8)}, "FEED-22"
    rows = [row for part in parts for batch in part for row in batch]
    assert sorted(rows) == sorted(row for batch in whole for row in batch), "FEED-23"


@whole("ranks, for a preparation")
def test_data_that_changed_when_it_was_computed_again_ends_the_run(
    two_ranks_that_restart: Callable[[str], Any], spark: Any, tmp_path: Path
) -> None:
    def at_random(batches: Any) -> Any:
        import os

        import pyarrow as pa

        for batch in batches:
            values = [int.from_bytes(os.urandom(6), "little") for _ in range(batch.num_rows)]
            yield pa.RecordBatch.from_pydict({"id": values})

    frame = spark.range(0, ROWS, 1, 5).mapInArrow(at_random, "id long")
    run = two_ranks_that_restart("python").start(train, str(tmp_path), "executor", data={"train": frame})
    began(tmp_path)
    lose_an_executor(run)
    with pytest.raises(TrainingError, match="'train' has changed since the run began"):
        run.result(180)  # FEED-34


@pytest.mark.parametrize("face", ["local", "python"])
def test_a_run_that_is_given_up_while_it_prepares_starts_no_rank(
    face: str, two_ranks: Callable[..., Any], spark: Any, tmp_path: Path
) -> None:
    begun, told = tmp_path / "begun", tmp_path / "told"

    def slow(batches: Any) -> Any:
        import time

        begun.touch()
        while True:
            time.sleep(0.05)
            yield from ()

    frame = spark.range(1).mapInArrow(slow, "id long")
    run = two_ranks(face).start(told.touch, data={"train": frame})
    eventually("the data is being prepared", 120, begun.exists)
    assert run.status == "preparing data"
    run.cancel("no more of it")
    with pytest.raises(TrainingError, match="cancelled") as caught:
        run.result(60)
    assert caught.value.kind == "cancelled"
    assert not told.exists()
    assert spark.range(0, 4, 1, 2).count() == 4, "the session has its slots back"
