"""Gangs of tasks: under dynamic allocation, two at the same time, and what is refused."""

from __future__ import annotations

import textwrap

import phalanx
import pytest
from support.breathing import BREATHES, PARTS
from support.own_session import in_session
from support.tiers import whole

pytestmark = pytest.mark.timeout(240)


def jar() -> dict[str, str]:
    return {"spark.jars": phalanx.jar_path()}


def in_breathing(code: str, conf: dict[str, str] | None = None) -> dict[str, object]:
    return in_session(
        "local-cluster[2,1,1024]",
        PARTS + textwrap.dedent(code),
        conf=BREATHES | jar() | (conf or {}),
        timeout=200,
    )


@whole("what SeatsSuite has from Scala")
@pytest.mark.parametrize("starter", ["python", "jvm"])
def test_a_gang_brings_its_executors_and_lets_them_go(starter: str) -> None:
    answer = in_breathing(
        f"""
        before = executors()
        result = of({starter!r}).run(train)
        there = executors()
        until(lambda: executors() == 0)
        again = of({starter!r}).run(train)
        answer = dict(before=before, result=result, there=there, again=again, jobs=jobs())
        """
    )
    assert answer == {"before": 0, "result": [2, 0, 2], "there": 2, "again": [2, 0, 2], "jobs": []}, "STAGE-9"


@whole("a cluster of its own")
def test_a_failed_rank_fails_its_run_once_and_leaves_no_job() -> None:
    answer = in_breathing(
        """
        def fails():
            import os
            print("begins", flush=True)
            if os.environ["RANK"] == "1":
                raise KeyError("of mine")
            import time
            time.sleep(60)

        began = time.monotonic()
        try:
            of("python", logs="all").run(fails)
        except phalanx.TrainingError as problem:
            told = [problem.kind, problem.rank, "of mine" in str(problem)]
        until(lambda: not jobs(), 20)
        answer = dict(told=told, seconds=time.monotonic() - began)
        """
    )
    assert answer["told"] == ["exception", 1, True]


@whole("a cluster of its own")
@pytest.mark.parametrize("with_jar", [True, False])
def test_two_gangs_that_each_could_get_half_both_finish(with_jar: bool) -> None:
    answer = in_breathing(
        """
        runs = [of("python").start(train) for _ in range(2)]
        answer = dict(results=[run.result(120) for run in runs])
        """,
        conf={} if with_jar else {"spark.jars": ""},
    )
    assert answer["results"] == [[2, 0, 2], [2, 0, 2]], "STAGE-10"


def test_what_can_not_be_is_refused_before_anything_starts() -> None:
    answer = in_breathing(
        """
        said = []
        def refused(run):
            try:
                run()
            except RuntimeError as problem:
                said.append(str(problem))
        refused(lambda: of("python", gang="barrier").run(train))
        df = spark.range(10)
        refused(lambda: of("python").with_data(train=df).run(train))
        refused(lambda: of("python").with_data(train=phalanx.streamed(df)).run(train))
        refused(lambda: of("python")._train_on_dataframe(train, df))
        refused(lambda: phalanx.TorchDistributor(num_processes=3, local_mode=False, use_gpu=False).run(train))
        answer = dict(said=said, executors=executors())
        """,
        conf={
            "spark.dynamicAllocation.maxExecutors": "2",
            "spark.dynamicAllocation.cachedExecutorIdleTimeout": "10min",
        },
    )
    barrier, data, streamed, rows, many = answer["said"]  # type: ignore[misc]
    assert "spark.phalanx.gang is barrier, which Spark refuses under dynamic allocation" in barrier
    assert "because spark.dynamicAllocation.cachedExecutorIdleTimeout is 10min; unset it" in data, "JOB-26"
    assert "the data set 'train' is streamed, which needs one stage for all tasks" in streamed, "FEED-70"
    assert "_train_on_dataframe needs one stage for all tasks" in rows, "FEED-70"
    assert "spark.dynamicAllocation.maxExecutors is 2" in many, "JOB-26"
    assert answer["executors"] == 0


@whole("a cluster of its own")
def test_a_gang_that_does_not_gather_gives_its_slots_back_and_says_what_was_missing() -> None:
    answer = in_session(
        "local-cluster[1,1,1024]",
        PARTS
        + textwrap.dedent("""
        from phalanx.request import preflight
        preflight.check_slots = lambda *arguments: None  # as where nobody knows how far a cluster can grow
        try:
            of("python").run(train)
        except phalanx.TrainingError as problem:
            said = str(problem)
        until(lambda: not jobs(), 20)
        answer = dict(said=said, after=spark.range(10).count())
        """),
        conf=BREATHES | {"spark.phalanx.gang.wait": "20s"},
        timeout=120,
    )
    assert "did not bring the executors for 2 tasks within 20s (spark.phalanx.gang.wait)" in answer["said"]
    assert "it has 1 of 2 task slots, which are given back" in answer["said"]
    assert answer["after"] == 10


@whole("a cluster of its own")
@pytest.mark.parametrize(
    ("starter", "when", "tries"),
    [
        ("python", "it waits", 4),
        ("python", "it trains", 4),
        ("jvm", "it trains", 4),
        ("python", "it trains", 1),
        ("jvm", "it trains", 1),
    ],
)
def test_an_executor_that_ends_is_replaced(starter: str, when: str, tries: int) -> None:
    answer = in_breathing(
        f"""
        import os, signal, tempfile
        waits = {when == "it waits"}
        marks = tempfile.mkdtemp()

        def trains(marks):
            import os, time
            rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
            open(os.path.join(marks, f"{{attempt}}-{{rank}}"), "w").close()
            while attempt == "0" and {when == "it trains"}:
                time.sleep(0.1)
            return int(attempt)

        if waits:
            take_a_slot(25)
            until(lambda: len(executors_here()) == 1)
        before = max(all_jobs(), default=-1)
        run = of({starter!r}, max_restarts=0 if waits else 1).start(trains, marks)
        if waits:
            until(lambda: len(executors_here()) == 2)
            time.sleep(8)
        else:
            until(lambda: len(os.listdir(marks)) == 2)
        max(executors_here(), key=lambda process: process.create_time()).kill()
        result = run.result(150)
        seats = [job for job in all_jobs() if job > before]
        answer = dict(result=result, attempts=len(os.listdir(marks)), seats=len(seats))
        """,
        conf={"spark.task.maxFailures": str(tries)},
    )
    times = {"result": 0, "attempts": 2} if when == "it waits" else {"result": 1, "attempts": 4}
    # Whoever lives keeps its seat. One that Spark gives up is submitted again.
    assert answer == times | {"seats": 2 if tries > 1 else 3}, "DRIVER-31, STAGE-9, JAR-27"


@whole("a cluster of its own")
@pytest.mark.parametrize("starter", ["python", "jvm"])
def test_a_gang_that_others_keep_from_its_slots_waits_no_longer_than_the_queue_may(starter: str) -> None:
    answer = in_breathing(
        f"""
        until(lambda: executors() == 2)
        take_a_slot(20)
        run = of({starter!r}, gang="tasks").start(train)
        until(lambda: run.status == "waiting for 2 slots; 1 is free")
        try:
            run.result(100)
        except phalanx.TrainingError as problem:
            said = str(problem)
        until(lambda: not jobs())
        answer = dict(said=said, next=of({starter!r}, gang="tasks").run(train))
        """,
        conf={"spark.dynamicAllocation.enabled": "false", "spark.phalanx.queueTimeout": "5s"},
    )
    assert "did not have 2 free task slots at once within 5s (spark.phalanx.queueTimeout)" in answer["said"]
    assert answer["next"] == [2, 0, 2], "STAGE-10: its turn is over"


@whole("a cluster of its own")
def test_what_a_node_refuses_fails_its_run_at_once_and_is_not_tried_again() -> None:
    answer = in_breathing(
        """
        import phalanx.stages.python as stage
        real = stage._task

        def breaks(**arguments):
            def task(rows):
                raise ValueError("no node of mine")
            return task

        stage._task = breaks
        try:
            of("python").run(train)
        except phalanx.TrainingError as problem:
            said = str(problem)
        until(lambda: not jobs())
        tracker = spark.sparkContext.statusTracker()
        ids = tracker.getJobIdsForGroup(None)
        stages = [tracker.getStageInfo(s) for job in ids for s in tracker.getJobInfo(job).stageIds]
        answer = dict(said=said, failed=sum(stage.numFailedTasks for stage in stages if stage))
        """
    )
    assert "ValueError: no node of mine" in answer["said"], "STAGE-9"
    assert answer["failed"] == 0, "STAGE-9"


@whole("a cluster of its own")
def test_a_large_payload_is_sent_once_for_all_seats() -> None:
    answer = in_breathing(
        """
        ballast = bytes(3 << 20)

        def weighs():
            return len(ballast)

        answer = dict(result=of("python").run(weighs))
        """
    )
    assert answer == {"result": 3 << 20}


@whole("over Connect")
def test_over_connect_a_gang_of_tasks_is_one_stage_for_which_executors_come() -> None:
    answer = in_session(
        "local-cluster[2,1,1024]",
        """
        import phalanx

        def train():
            import torch
            import torch.distributed as dist
            dist.init_process_group("gloo")
            ones = torch.ones(1)
            dist.all_reduce(ones)
            return int(ones)

        answer = phalanx.TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(train)
        """,
        conf=BREATHES,
        connect=True,
        timeout=200,
    )
    assert answer == 2


@whole("a cluster of its own")
@pytest.mark.parametrize("starter", ["python", "jvm"])
def test_a_session_that_stops_while_a_gang_waits_for_slots_holds_up_none_of_the_next(starter: str) -> None:
    answer = in_breathing(
        f"""
        until(lambda: executors() == 2)
        take_a_slot(600)
        run = of({starter!r}, gang="tasks").start(train)
        until(lambda: run.status == "waiting for 2 slots; 1 is free")
        spark.stop()
        try:
            run.result(60)
        except RuntimeError as problem:
            said = type(problem).__name__
        spark = builder.getOrCreate()
        answer = dict(said=said, next=of({starter!r}, gang="tasks").run(train))
        """,
        conf={"spark.dynamicAllocation.enabled": "false"},
    )
    assert answer == {"said": "TrainingError", "next": [2, 0, 2]}, "STAGE-10"


@whole("a cluster of its own")
@pytest.mark.parametrize("how", ["group", "all"])
@pytest.mark.parametrize("starter", ["python", "jvm", "without the jar"])
def test_what_cancels_spark_s_jobs_ends_a_gang_that_waits_and_those_behind_it(starter: str, how: str) -> None:
    stage = "jvm" if starter == "jvm" else "python"
    answer = in_breathing(
        f"""
        context, group = spark.sparkContext, "spark.jobGroup.id"

        def start(name):
            context.setJobGroup(name, name)
            run = of({stage!r}).start(train)
            context.setLocalProperty(group, None)
            context.setLocalProperty("spark.job.description", None)
            return run

        def end(run):
            try:
                return run.result(100)
            except phalanx.TrainingError as problem:
                return problem.kind

        def holds():
            context.setJobGroup("holder", "holds a slot of two")
            context.parallelize([0], 1).foreach(lambda _: time.sleep(600))

        def hold():
            try:
                holds()
            except Exception:  # cancelled
                pass

        threading.Thread(target=hold, daemon=True).start()
        until(lambda: executors() == 1)
        waits = start("mine")
        until(lambda: len(jobs()) == 3 and executors() == 2)
        behind, others = start("mine"), start("others")
        until(lambda: "waiting for" in others.status)
        time.sleep(3)  # one task of the first waits at the hub by then
        before = len(jobs())
        began = time.monotonic()
        {"context.cancelJobGroup('mine')" if how == "group" else "context.cancelAllJobs()"}
        ends = [end(waits), end(behind)]
        seconds = time.monotonic() - began
        if {how == "group"}:
            until(lambda: len(jobs()) == 3)  # the holder's, and those of the gang whose turn it is
            context.cancelJobGroup("holder")
        ends.append(end(others))
        until(lambda: not jobs())
        answer = dict(before=before, ends=ends, soon=seconds < 20, next=of({stage!r}).run(train))
        """,
        conf={"spark.dynamicAllocation.maxExecutors": "2"}
        | ({"spark.jars": ""} if starter == "without the jar" else {}),
    )
    last = [2, 0, 2] if how == "group" else "cancelled"
    expected = {"before": 3, "ends": ["cancelled", "cancelled", last], "soon": True, "next": [2, 0, 2]}
    assert answer == expected, "STAGE-11"
