"""Runs whose tasks take something else than those of the application's other jobs: resource profiles of Spark's.

The GPUs are addresses of a discovery script.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import phalanx
import pytest
from support.breathing import BREATHES, PARTS
from support.own_session import in_session
from support.tiers import whole

pytestmark = pytest.mark.timeout(240)

SEES = """
def sees():
    import os
    names = "CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE", "WORLD_SIZE"
    return [*(os.environ[name] for name in names), int(os.environ["OMP_NUM_THREADS"])]

def distributor(stage, ranks=2, **options):
    spark.conf.set("spark.phalanx.stage", stage)
    gpus = "gpus_per_rank" in options
    return phalanx.TorchDistributor(num_processes=ranks, local_mode=False, use_gpu=gpus, **options)

def refused(ranks, **options):
    try:
        distributor("auto", ranks, **options).run(sees)
    except RuntimeError as problem:
        return str(problem)

def executors_profiles():
    known = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    of_executors = [known.apply(i) for i in range(known.size()) if known.apply(i).id() != "driver"]
    return sorted(each.resourceProfileId() for each in of_executors)
"""


def with_jar(stage: str) -> dict[str, str]:
    return {"spark.jars": phalanx.jar_path()} if stage == "jvm" else {}


def discovery(folder: Path, addresses: str) -> str:
    script = folder / "discover"
    script.write_text(f"#!/bin/sh\n{addresses}\n")
    script.chmod(0o755)
    return str(script)


def told(*addresses: str) -> str:
    listed = ", ".join(f'"{address}"' for address in addresses)
    return f"""echo '{{"name": "gpu", "addresses": [{listed}]}}'"""


def in_shared(folder: Path, stage: str, code: str) -> Any:
    """On one executor of four cores with two GPUs, of which an ordinary task takes a quarter of one."""
    script = discovery(folder, told("GPU-a", "GPU-b"))
    conf = {
        "spark.executor.memory": "512m",
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": script,
        "spark.executor.resource.gpu.amount": "2",
        "spark.executor.resource.gpu.discoveryScript": script,
        "spark.task.resource.gpu.amount": "0.25",
        "spark.ui.showConsoleProgress": "false",
    }
    text = PARTS + SEES + textwrap.dedent(code)
    return in_session("local-cluster[1,4,1024]", text, conf=conf | with_jar(stage), timeout=200)


@pytest.mark.parametrize("over", ["jvm", "python"])
@whole("a cluster of its own")
def test_ranks_have_whole_gpus_where_other_tasks_share_them(tmp_path: Path, over: str) -> None:
    answer = in_shared(
        tmp_path,
        over,
        f"""
        stage = {over!r}

        def shares(_):
            import time
            from pyspark import TaskContext
            time.sleep(2)
            return TaskContext.get().resources()["gpu"].addresses, TaskContext.get().cpus()

        before = spark.sparkContext.parallelize(range(4), 4).map(shares).collect()
        ranks = {{
            gang: distributor(stage, gang=gang, gpus_per_rank=1).start(sees).results(90)
            for gang in ("barrier", "tasks")
        }}
        ranks["one of two GPUs"] = distributor(stage, 1, gpus_per_rank=2, task_cpus=3).start(sees).results(90)
        threads = {{
            gang: distributor(stage, gang=gang, task_cpus=2).start(sees).results(90)
            for gang in ("barrier", "tasks")
        }}
        spark.conf.set("spark.phalanx.taskCpus", "4")
        by_setting = distributor(stage, 1).start(sees).results(90)
        spark.conf.unset("spark.phalanx.taskCpus")
        rows = dict(data={{"rows": phalanx.streamed(spark.range(8))}})
        streamed = distributor(stage, task_cpus=2).start(sees, **rows).results(90)
        said = [
            refused(3, task_cpus=2), refused(2, task_cpus=5), refused(1, gpus_per_rank=3),
            refused(3, gpus_per_rank=1),
        ]
        # Two profiles of the application's own that want the same would be two for Spark.
        manager = spark.sparkContext._jsc.sc().resourceProfileManager()
        known = []
        for number in range(20):
            try:
                known.append(manager.resourceProfileFromId(number).toString().partition("task resources")[2])
            except Exception:
                pass
        after = spark.sparkContext.parallelize(range(4), 4).map(shares).collect()
        answer = dict(
            before=before, ranks=ranks, threads=threads, by_setting=by_setting, streamed=streamed, said=said,
            known=known, after=after,
        )
        """,
    )
    for told in ("before", "after"):
        shared = [gpus for gpus, cpus in answer[told] if cpus == 1]
        assert len(shared) == 4, told
        assert len({gpu for gpus in shared for gpu in gpus}) < 4, told
    for gang in ("barrier", "tasks"):
        whole_ones = answer["ranks"][gang]
        assert sorted(rank[0] for rank in whole_ones) == ["GPU-a", "GPU-b"], ("JOB-29", gang)
        assert [rank[1:] for rank in whole_ones] == [["1", "2", 1]] * 2, gang
        assert answer["threads"][gang] == [["", "1", "2", 2]] * 2, ("NODE-38", "JOB-27", gang)
    [both] = answer["ranks"]["one of two GPUs"]
    assert (sorted(both[0].split(",")), both[1:]) == (["GPU-a", "GPU-b"], ["1", "1", 3])
    assert answer["by_setting"] == [["", "1", "1", 4]]
    assert answer["streamed"] == [["", "1", "2", 2]] * 2
    master = (
        "but with master local-cluster[1,4,1024] there are never more than 2; lower num_processes or give the"
    )
    assert answer["said"] == [
        f"the run needs 3 task slots of 2 cores at once, {master} application more cores",
        "each task of the run takes 5 cores, but an executor has 4; lower spark.phalanx.taskCpus, or raise "
        "spark.executor.cores",
        "each task of the run takes 3 GPUs, but an executor has 2; lower spark.phalanx.gpusPerRank, or raise "
        "spark.executor.resource.gpu.amount",
        f"the run needs 3 task slots of 1 core and 1 GPU at once, {master} application more executors",
    ], "JOB-28"
    assert len(answer["known"]) == len(set(answer["known"])) == 5, ("REQUEST-7", answer["known"])


@pytest.mark.parametrize("over", ["jvm", "python"])
@whole("a cluster of its own")
def test_a_gpu_that_another_task_has_a_part_of_is_waited_for(tmp_path: Path, over: str) -> None:
    answer = in_shared(
        tmp_path,
        over,
        f"""
        import os, tempfile
        done = os.path.join(tempfile.mkdtemp(), "done")

        def holds(_):
            import os, time
            while not os.path.exists(done):
                time.sleep(0.1)

        def hold():
            holder = threading.Thread(
                target=lambda: spark.sparkContext.parallelize([0], 1).foreach(holds), daemon=True
            )
            holder.start()
            until(jobs)
            return holder

        seen = {{}}
        for gang in ("barrier", "tasks"):
            holder = hold()
            run = distributor({over!r}, gang=gang, gpus_per_rank=1).start(sees)
            until(lambda: "slot" in run.status)
            time.sleep(2)
            status = run.status
            open(done, "w").close()
            seen[gang] = [status, len({{rank[0] for rank in run.results(90)}})]
            holder.join(30)
            os.remove(done)

        def begins(began, done):
            import os, time
            open(began, "w").close()
            while not os.path.exists(done):
                time.sleep(0.1)

        from phalanx.stages.stage_watch import look_at_scheduler
        run = distributor({over!r}, 1, task_cpus=3).start(begins, done + "-began", done)
        until(lambda: os.path.exists(done + "-began"))
        look = look_at_scheduler(spark.sparkContext, "of no job")
        open(done, "w").close()
        run.result(60)
        answer = dict(seen=seen, left=[look.slots, look.free])
        """,
    )
    for gang in ("barrier", "tasks"):
        assert answer["seen"][gang] == ["waiting for 2 slots; 1 is free", 2], ("JOB-29", gang)
    assert answer["left"] == [4, 1], (
        "REQUEST-8: a task of three cores leaves one slot to the application's others"
    )


def in_breathing(folder: Path, code: str) -> Any:
    """On two workers of two cores with a GPU each, and executors of one core without any."""
    turns = f"if mkdir {folder}/first 2>/dev/null; then {told('GPU-a')}; else {told('GPU-b')}; fi"
    conf = {
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": discovery(folder, turns),
        "spark.dynamicAllocation.executorIdleTimeout": "10s",
        "spark.ui.showConsoleProgress": "false",
    }
    text = PARTS + SEES + textwrap.dedent(code)
    return in_session(
        "local-cluster[2,2,1024]",
        text,
        conf=BREATHES | {"spark.jars": phalanx.jar_path()} | conf,
        timeout=230,
    )


@whole("a cluster of its own")
@pytest.mark.parametrize("starter", ["jvm", pytest.param("python", marks=whole("over the python stage"))])
def test_under_dynamic_allocation_a_run_has_executors_of_its_own(tmp_path: Path, starter: str) -> None:
    answer = in_breathing(
        tmp_path,
        f"""
        spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: None)
        before = set(executors_profiles())
        options = dict(gpus_per_rank=1, task_cpus=2)
        until(lambda: executors() == 0)  # a worker has room for one of either kind
        first = distributor({starter!r}, **options).start(sees).results(120)
        there = executors_profiles()
        again = distributor({starter!r}, **options).start(sees).results(120)
        still = executors_profiles()
        said = [refused(2, task_cpus=3), refused(2, memory_per_rank="1g")]
        spark.conf.set("spark.phalanx.gang.wait", "8s")
        said.append(refused(1, gpus_per_rank=2).partition(": it has")[0])
        until(lambda: executors() == 0)
        answer = dict(before=sorted(before), first=first, there=there, again=again, still=still, said=said)
        """,
    )
    assert answer["before"] == [0]
    for told_by in ("first", "again"):
        assert sorted(rank[0] for rank in answer[told_by]) == ["GPU-a", "GPU-b"], "JOB-27"
        assert [rank[1:] for rank in answer[told_by]] == [["1", "2", 2]] * 2, "JOB-27"
    own = [number for number in answer["there"] if number > 0]
    assert (len(own), len(set(own))) == (2, 1), ("JOB-27", answer["there"])
    assert answer["still"] == answer["there"], "REQUEST-7: the second run has the executors of the first"
    assert answer["said"] == [
        "each task of the run takes 3 cores, but a worker has 2; lower spark.phalanx.taskCpus",
        "spark.phalanx.memoryPerRank is set, but Spark gives a run's executors memory of their own only on YARN and "
        "Kubernetes with dynamic allocation; unset it",
        # What a worker has nobody tells.
        "Spark did not bring the executors for 1 task within 8s (spark.phalanx.gang.wait)",
    ], "JOB-28"


FEEDS = """
def feeds(done):
    import os, time
    import phalanx
    open(done + os.environ["RANK"], "w").close()
    while not os.path.exists(done):
        time.sleep(0.05)
    loader = phalanx.data("rows").loader(batch_size=4, uneven="pad")
    return [row for batch in loader for row in batch["id"][batch["mask"]].tolist()]

def apart(batches, folder):
    import os, time
    from pyspark import TaskContext
    open(os.path.join(folder, f"wrote-{TaskContext.get().partitionId()}"), "w").close()
    while sum(name.startswith("wrote-") for name in os.listdir(folder)) < 2:
        time.sleep(0.05)
    yield from batches
"""


@whole("data, for ranks")
@pytest.mark.parametrize("over", ["jvm", "python"])
def test_data_on_the_applications_executors_feeds_ranks_on_a_runs_own(tmp_path: Path, over: str) -> None:
    answer = in_breathing(
        tmp_path,
        FEEDS
        + textwrap.dedent(
            f"""
            import functools, os
            from phalanx.request import slots
            done = {str(tmp_path / "done")!r}
            rows = spark.range(0, 40, 1, 2).mapInArrow(functools.partial(apart, folder={str(tmp_path)!r}), "id long")
            run = distributor({over!r}, gpus_per_rank=1).start(feeds, done, data={{"rows": rows}})
            until(lambda: all(os.path.exists(done + rank) for rank in "01"), 170)
            there, round = executors_profiles(), run._inputs._a_round()
            context = spark.sparkContext
            free = [slots.free_slots(context, number) for number in sorted(set(there))]
            open(done, "w").close()
            read = [row for part in run.results(120) for row in part]
            until(lambda: executors() == 0)
            answer = dict(there=there, round=round, free=free, read=sorted(read))
            """
        ),
    )
    assert answer["read"] == list(range(40))
    assert [number > 0 for number in answer["there"]] == [False, False, True, True], "FEED-71, JOB-27"
    assert answer["round"] == 2, "FEED-73: the run's own tasks take none of the application's slots"
    assert answer["free"] == [2, 0], "REQUEST-8"


@whole("over Spark Connect")
def test_a_client_of_spark_connect_says_what_its_tasks_take() -> None:
    answer = in_session(
        "local-cluster[1,4,1024]",
        PARTS
        + SEES
        + textwrap.dedent(
            """
            from phalanx.request.run_profile import run_profile
            results = [distributor("auto", task_cpus=2).start(sees).results(120) for _ in range(2)]
            numbers = set()
            def ask(cpus):
                wanted = {"spark.phalanx.taskCpus": cpus}
                profile = run_profile(spark, wanted, use_gpu=False, local_mode=False, of_dataframe=True)
                numbers.add((cpus, profile.id))
            # A thread has no active session, by which pyspark would tell the server.
            threads = [threading.Thread(target=ask, args=(cpus,)) for cpus in "2334"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            beside = []
            run = lambda: beside.extend(distributor("auto", 1, task_cpus=3).run(sees))
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            answer = dict(results=results, profiles=sorted(cpus for cpus, _ in numbers), beside=beside)
            """
        ),
        conf={"spark.executor.memory": "512m"},
        connect=True,
        timeout=200,
    )
    assert answer["results"] == [[["", "1", "2", 2]] * 2] * 2, "JOB-27"
    assert answer["profiles"] == ["2", "3", "4"], "REQUEST-7"
    assert answer["beside"] == ["", "1", "1", 3]
