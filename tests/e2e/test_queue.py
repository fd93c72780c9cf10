"""A run whose slots other jobs hold: it waits for them, says so, and fails by no time but one that was set for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import phalanx
import psutil
import pytest
from phalanx import TorchDistributor, TrainingError
from support.programs import eventually
from support.tiers import differs, whole

pytestmark = pytest.mark.timeout(150)

# How long tasks may take to join, and a run may wait.
JOIN_S = 10
QUEUE_S = 3
# How long the server of a client may take to tell of its queue, and a session of its own to show that slots are free.
TOLD_S = 20

WAITS = {"waiting for 2 slots; 1 is free", "waiting for 2 slots; 0 are free"}


def ranks() -> str:
    import os

    return os.environ["WORLD_SIZE"]


@pytest.fixture
def settings(spark: Any) -> Iterator[None]:
    # Executors whose first tasks take as long as those of a busy machine do, which is nobody's test.
    spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long", barrier=True).collect()
    spark.conf.set("spark.phalanx.joinTimeout", f"{JOIN_S}s")
    yield
    for name in ("joinTimeout", "queueTimeout"):
        spark.conf.unset(f"spark.phalanx.{name}")


@pytest.fixture
def other_job(spark: Any, tmp_path: Path) -> Callable[..., Any]:
    """Another job of the session, which holds so many slots while the `with` lasts."""

    @contextmanager
    def holding(slots: int) -> Iterator[None]:
        held, release = tmp_path / "held", tmp_path / "release"
        places = str(held), str(release)

        def hold(batches: Iterator[Any]) -> Iterator[Any]:
            import os
            import time

            with open(places[0], "w"):
                pass
            until = time.monotonic() + 120
            while not os.path.exists(places[1]) and time.monotonic() < until:
                time.sleep(0.05)
            yield from batches

        job = threading.Thread(
            target=lambda: spark.range(0, slots, 1, slots).mapInArrow(hold, "id long").collect()
        )
        job.start()
        try:
            yield
        finally:
            release.touch()
            job.join(60)
            assert not job.is_alive()

    return holding


def waits(run: Any) -> None:
    """Until it says that it waits for slots; raises what it failed of instead."""
    eventually("it says that it waits for slots", TOLD_S, lambda: run.done or run.status in WAITS)
    if run.done:
        run.result()


def waits_for_longer_than_tasks_have_to_join(run: Any) -> None:
    until = time.monotonic() + JOIN_S + 3
    eventually("it waits for so long", JOIN_S + 30, lambda: run.done or time.monotonic() > until)
    assert not run.done


def is_held(tmp_path: Path) -> Callable[[], bool]:
    return (tmp_path / "held").exists


@differs("connect", why="a server's plugin looks for a client")
@pytest.mark.behaviour
def test_a_run_waits_for_slots_that_another_job_holds_for_longer_than_tasks_have_to_join(
    stage: Any,
    spark: Any,
    settings: None,
    other_job: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "phalanx"):
        with other_job(1):
            eventually("the other job holds a slot", 60, is_held(tmp_path))
            run = stage.start(ranks)
            waits(run)
            assert run.status == "waiting for 2 slots; 1 is free"
            eventually("its snapshot says so, too", 10, lambda: run.snapshot()["waits_for"] == run.status)
            assert run.status in run._repr_html_()
            waits_for_longer_than_tasks_have_to_join(run)
        assert run.result(90) == "2", "DRIVER-42"
    assert run.snapshot()["waits_for"] is None
    told = [record.message for record in caplog.records if "waiting for 2 slots" in record.message]
    assert len(told) == 1, told
    left = [thread.name for thread in threading.enumerate() if thread.name == "phalanx-stage-watch"]
    assert left == [], "STAGE-7"


@pytest.mark.behaviour
def test_a_run_that_may_not_wait_for_so_long_says_what_it_waited_for(
    stage: Any, spark: Any, settings: None, other_job: Callable[..., Any], tmp_path: Path
) -> None:
    spark.conf.set("spark.phalanx.queueTimeout", f"{QUEUE_S}s")
    with other_job(1):
        eventually("the other job holds a slot", 60, is_held(tmp_path))
        with pytest.raises(TrainingError) as failed:
            stage.run(ranks)
    assert failed.value.kind == "start"
    assert failed.value.message.startswith(
        f"Spark did not have 2 free task slots at once within {QUEUE_S}s (spark.phalanx.queueTimeout); 1 was "
        "free at the end. Wait for the jobs that hold the others"
    ), "DRIVER-44"


@pytest.mark.behaviour
def test_a_run_that_waits_for_slots_can_be_cancelled(
    stage: Any, spark: Any, settings: None, other_job: Callable[..., Any], tmp_path: Path
) -> None:
    with other_job(2):
        eventually("the other job holds slots", 60, is_held(tmp_path))
        run = stage.start(ranks)
        waits(run)
        run.cancel("no patience")
        with pytest.raises(TrainingError, match="no patience") as failed:
            run.result(30)
        assert failed.value.kind == "cancelled"
    assert stage.run(ranks) == "2"


@pytest.mark.classic
def test_what_spark_computes_before_the_ranks_stage_takes_nothing_of_their_time_to_join(
    two_ranks: Callable[..., TorchDistributor], spark: Any, settings: None, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    path = str(go)

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import time

        until = time.monotonic() + 120
        while not os.path.exists(path) and time.monotonic() < until:
            time.sleep(0.05)
        yield from batches

    def train() -> int:
        import phalanx

        return sum(len(batch["id"]) for batch in phalanx.data("rows").loader(batch_size=2))

    rows = spark.range(0, 8, 1, 2).mapInArrow(slow, "id long").repartition(2)
    run = two_ranks("python").start(train, data={"rows": phalanx.streamed(rows)})
    eventually("its hub is open", 60, lambda: run.done or run._hub)
    waits_for_longer_than_tasks_have_to_join(run)
    go.touch()
    assert sum(run.results(90)) == 8, "DRIVER-42"


@whole("a restart, which rust/job/tests/bounds.rs has")
@pytest.mark.classic
def test_a_restart_whose_slots_another_job_takes_waits_anew(
    two_ranks: Callable[..., TorchDistributor],
    spark: Any,
    settings: None,
    other_job: Callable[..., Any],
    tmp_path: Path,
) -> None:
    def train(folder: str) -> str:
        import os
        import time

        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if attempt == "0":
            path = os.path.join(folder, os.environ["RANK"])
            with open(f"{path}.new", "w") as file:
                file.write(str(os.getpid()))
            os.rename(f"{path}.new", path)
            time.sleep(600)
        return attempt

    run = two_ranks("python", max_restarts=1).start(train, str(tmp_path))
    eventually("both ranks run", 60, lambda: run.done or all((tmp_path / rank).exists() for rank in "01"))
    # A job that was submitted first gets the slots first.
    with other_job(2):
        tracker = spark.sparkContext.statusTracker()
        eventually("the other job is submitted", 30, lambda: len(tracker.getActiveJobsIds()) == 2)
        rank = psutil.Process(int((tmp_path / "0").read_text()))
        next(each for each in rank.parents() if not each.name().startswith("phalanx-")).kill()
        eventually("the other job holds slots", 60, is_held(tmp_path))
        waits(run)
        waits_for_longer_than_tasks_have_to_join(run)
    assert run.result(90) == "1", "DRIVER-42"
