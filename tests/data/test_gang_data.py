"""Data in a gang of tasks: executors that have blocks stay while they are idle, and what goes with one comes again."""

from __future__ import annotations

import textwrap
from typing import Any

import phalanx
import pytest
from support.breathing import BREATHES, PARTS
from support.own_session import in_session
from support.tiers import whole

pytestmark = pytest.mark.timeout(300)
_other = whole("another writer")

# Each partition is written by an executor of its own. Of a later time it is told, and takes a while.
DATA = """
import os, tempfile

marks = tempfile.mkdtemp()

def mark(name):
    return os.path.join(marks, name)

def data(partitions, marks=marks):
    def together(batches):
        import os, time
        from pyspark import TaskContext
        own = os.path.join(marks, f"wrote-{TaskContext.get().partitionId()}")
        if os.path.exists(own):
            open(os.path.join(marks, "again"), "a").write("x")
            time.sleep(2)
        open(own, "w").close()
        while sum(name.startswith("wrote-") for name in os.listdir(marks)) < partitions:
            time.sleep(0.05)
        yield from batches
    return spark.range(0, 30 * partitions, 1, partitions).mapInArrow(together, "id long")

def feed(marks):
    import os, time
    import phalanx
    rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    open(os.path.join(marks, f"began-{attempt}-{rank}"), "w").close()
    while not os.path.exists(os.path.join(marks, f"go-{attempt}")):
        time.sleep(0.05)
    loader = phalanx.data("train").loader(batch_size=4, uneven="pad")
    return [row for batch in loader for row in batch["id"][batch["mask"]].tolist()]

def distributor(stage, ranks, **options):
    spark.conf.set("spark.phalanx.stage", stage)
    return phalanx.TorchDistributor(num_processes=ranks, local_mode=False, use_gpu=False, **options)
"""

WAYS = {"jvm": ("jvm", True), "python": ("python", True), "without the jar": ("auto", False)}


def in_breathing(
    code: str, *, with_jar: bool, conf: dict[str, str] | None = None, connect: bool = False
) -> Any:
    jar = {"spark.jars": phalanx.jar_path()} if with_jar else {}
    idle = {"spark.dynamicAllocation.executorIdleTimeout": "1s", "spark.phalanx.grace": "1s"}
    return in_session(
        "local-cluster[3,1,1024]",
        PARTS + DATA + textwrap.dedent(code),
        conf=BREATHES | jar | idle | (conf or {}),
        connect=connect,
        timeout=250,
    )


@whole("a cluster of its own")
@pytest.mark.parametrize(
    "way", ["jvm", *(pytest.param(way, marks=_other) for way in ("python", "without the jar"))]
)
def test_executors_that_have_blocks_stay_while_they_are_idle_and_go_with_the_run(way: str) -> None:
    stage, with_jar = WAYS[way]
    answer = in_breathing(
        f"""
        freed = mark("freed")
        waits = lambda _: [__import__("time").sleep(0.05) for _ in iter(lambda: os.path.exists(freed), True)]
        hold = lambda: spark.sparkContext.parallelize([0], 1).foreach(waits)
        threading.Thread(target=hold, daemon=True).start()
        until(jobs)
        run = distributor({stage!r}, 1).start(feed, marks, data={{"train": data(2)}})
        until(lambda: os.path.exists(mark("began-0-0")), 120)
        most = len(executors_here())
        open(freed, "w").close()
        until(lambda: len(executors_here()) == 2)
        time.sleep(5)
        idle = len(executors_here())
        cached = lambda: spark.sparkContext._jsc.sc().getPersistentRDDs().size()
        during, round = cached(), (run._inputs._a_round(), run._inputs._slots())
        open(mark("go-0"), "w").close()
        rows = run.result(120)
        until(lambda: executors() == 0)
        answer = dict(rows=rows, most=most, idle=idle, during=during, after=cached(), round=round)
        """,
        with_jar=with_jar,
    )
    assert answer["rows"] == list(range(60)), "FEED-71"
    assert (answer["most"], answer["idle"]) == (3, 2), "FEED-71: only the one without blocks goes"
    assert (answer["during"], answer["after"]) == (1, 0), "FEED-72"
    assert answer["round"] == [1, 2], "FEED-73: of two slots one is free"


@pytest.mark.parametrize(
    "way", ["jvm", *(pytest.param(way, marks=_other) for way in ("python", "without the jar"))]
)
@whole("a cluster of its own")
def test_an_executor_that_is_killed_with_its_blocks_has_all_seats_given_back_and_its_rows_written_again(
    way: str,
) -> None:
    stage, with_jar = WAYS[way]
    answer = in_breathing(
        f"""
        import contextlib, io
        before = max(all_jobs(), default=-1)
        run = distributor({stage!r}, 2, max_restarts=1).start(feed, marks, data={{"train": data(2)}})
        until(lambda: all(os.path.exists(mark(f"began-0-{{rank}}")) for rank in range(2)), 120)
        files = run._inputs._indexes["train"].files
        victim = executors_here()[0]
        folder = victim.environ()["SPARK_EXECUTOR_DIRS"]
        lost = [file for file in files if file.startswith(folder)]
        victim.kill()
        for file in lost:  # as where its host or its container goes
            os.unlink(file)
        until(lambda: os.path.exists(mark("again")), 120)
        time.sleep(1)
        meanwhile = len(jobs())
        open(mark("go-1"), "w").close()
        rows = [row for part in run.results(150) for row in part]
        again = open(mark("again")).read()
        began = sorted(name for name in os.listdir(marks) if name.startswith("began-"))
        until(lambda: executors() == 0)
        left = spark.sparkContext._jsc.sc().getPersistentRDDs().size()
        answer = dict(rows=sorted(rows), lost=len(lost), meanwhile=meanwhile, again=again, began=began, left=left)
        """,
        with_jar=with_jar,
    )
    assert answer["rows"] == list(range(60)), "FEED-34"
    assert answer["lost"] == 1
    assert answer["meanwhile"] == 1, "DRIVER-60: no seat has a slot while rows are written"
    assert answer["again"] == "x", "FEED-67: only what was lost is written again"
    assert answer["began"] == ["began-0-0", "began-0-1", "began-1-0", "began-1-1"]
    assert answer["left"] == 0, "FEED-72"


@whole("a cluster of its own")
@pytest.mark.parametrize("way", ["jvm", "without the jar"])
def test_rows_of_an_executor_that_is_killed_without_a_rank_on_it_are_missed_and_written_again(
    way: str,
) -> None:
    stage, with_jar = WAYS[way]
    answer = in_breathing(
        f"""
        run = distributor({stage!r}, 1, max_restarts=1).start(feed, marks, data={{"train": data(2)}})
        until(lambda: os.path.exists(mark("began-0-0")), 120)
        files = run._inputs._indexes["train"].files
        written = lambda p: [f for f in files if f.startswith(p.environ()["SPARK_EXECUTOR_DIRS"])]
        rank = lambda p: any("phalanx" in " ".join(c.cmdline()) for c in p.children(recursive=True))
        (victim,) = [process for process in executors_here() if not rank(process)]
        lost = written(victim)
        victim.kill()
        for file in lost:
            os.unlink(file)
        open(mark("go-0"), "w").close()
        open(mark("go-1"), "w").close()
        rows = run.result(150)
        answer = dict(rows=rows, lost=len(lost), again=open(mark("again")).read())
        """,
        with_jar=with_jar,
    )
    assert answer == {"rows": list(range(60)), "lost": 1, "again": "x"}, "DRIVER-61, FEED-74"


@whole("a cluster of its own")
@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_executors_go_after_a_run_that_did_not_end_well(end: str) -> None:
    answer = in_breathing(
        f"""
        def breaks(marks):
            raise KeyError("of mine")

        which = breaks if {end == "fails"} else feed
        run = distributor("jvm", 1).start(which, marks, data={{"train": data(2)}})
        if which is feed:
            until(lambda: os.path.exists(mark("began-0-0")), 120)
            run.cancel()
        try:
            run.result(60)
        except phalanx.TrainingError as problem:
            kind = problem.kind
        until(lambda: executors() == 0)
        answer = dict(kind=kind, left=spark.sparkContext._jsc.sc().getPersistentRDDs().size())
        """,
        with_jar=True,
    )
    assert answer == {"kind": "exception" if end == "fails" else "cancelled", "left": 0}, "FEED-72"


@whole("over Connect")
def test_over_connect_executors_with_blocks_stay_and_go_with_the_run() -> None:
    answer = in_breathing(
        """
        run = distributor("auto", 1).start(feed, marks, data={"train": data(2)})
        until(lambda: os.path.exists(mark("began-0-0")), 120)
        time.sleep(6)
        idle = len(executors_here())
        open(mark("go-0"), "w").close()
        rows = run.result(120)
        until(lambda: not executors_here())
        answer = dict(rows=rows, idle=idle)
        """,
        with_jar=False,
        connect=True,
    )
    assert answer == {"rows": list(range(60)), "idle": 2}, "FEED-71, FEED-72"
