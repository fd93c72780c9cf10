"""Runs whose number of ranks changes: they begin with enough, grow after a checkpoint, and go on with what is left."""

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

FIXED = {"spark.executor.cores": "1", "spark.executor.memory": "512m"}
QUICK = {"spark.phalanx.elastic.patience": "1s", "spark.phalanx.elastic.cooldown": "1s"}

# Ranks that sum ones, and save what the sum was in each attempt, until there is the file `enough`.
TRAINING = """
import os, signal, tempfile
folder = tempfile.mkdtemp()

def enough():
    open(os.path.join(folder, "enough"), "w").close()

def train(folder):
    import os, time
    import torch
    import torch.distributed as dist
    from phalanx import checkpoint

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    saved = checkpoint.latest()
    step, sizes = (0, []) if saved is None else (saved[0], saved[1]["sizes"])
    sizes = [*sizes, size]
    while True:
        is_enough = os.path.exists(os.path.join(folder, "enough"))
        votes = torch.tensor([1.0, is_enough and rank == 0])
        dist.all_reduce(votes)
        assert votes[0] == size
        step += 1
        phalanx.report(step=step, size=size)
        if votes[1]:
            return sizes, step
        if step % 10 == 0 and rank == 0:
            checkpoint.save({"sizes": sizes}, step)
        time.sleep(0.02)

def elastic(stage, least=1, most=2, **options):
    spark.conf.set("spark.phalanx.stage", stage)
    return phalanx.TorchDistributor(
        num_processes=(least, most), local_mode=False, use_gpu=False, checkpoint_dir=folder, **options
    )

def hold_a_slot():
    free = os.path.join(folder, "free")

    def wait(_):
        import os, time

        while not os.path.exists(free):
            time.sleep(0.1)

    hold = lambda: spark.sparkContext.parallelize([0], 1).foreach(wait)
    threading.Thread(target=hold, daemon=True).start()
    until(jobs)

def free_the_slot():
    open(os.path.join(folder, "free"), "w").close()

def size(run):
    return run.snapshot()["world_size"] if run.snapshot()["state"] == "running" else None

def saved():
    found = phalanx.checkpoint.latest(directory=folder, name="train")
    return [] if found is None else found[1]["sizes"]

def runs_with(run, count):
    until(lambda: run.done or (size(run) == count and saved()[-1:] == [count]))
"""


def in_cluster(code: str, conf: dict[str, str]) -> Any:
    jar = {"spark.jars": phalanx.jar_path()}
    text = PARTS + TRAINING + textwrap.dedent(code)
    return in_session("local-cluster[2,1,1024]", text, conf=jar | QUICK | conf, timeout=200)


@pytest.mark.parametrize(
    ("starter", "with_jar"),
    [
        ("python", True),
        pytest.param("jvm", True, marks=whole("over the jvm stage")),
        pytest.param("python", False, marks=whole("without the jar")),
    ],
)
def test_a_run_begins_with_enough_grows_and_goes_on_without_an_executor(starter: str, with_jar: bool) -> None:
    answer = in_cluster(
        f"""
        until(lambda: executors() == 2)
        hold_a_slot()
        run = elastic({starter!r}).start(train, folder)
        runs_with(run, 1)
        free_the_slot()
        runs_with(run, 2)
        victim = executors_here()[0]
        victim.kill()
        runs_with(run, 1)
        runs_with(run, 2)
        enough()
        sizes, steps = run.result(60)
        until(lambda: not jobs())
        told, answer = run.snapshot(), dict(sizes=sizes, steps=steps, results=len(run.results()))
        answer |= dict(restarts=told["restarts"], told=[size for _, size in told["sizes"]], counts=told["counts"])
        """,
        conf=FIXED | ({} if with_jar else {"spark.jars": ""}),
    )
    assert answer["sizes"] == [1, 2, 1, 2], "DRIVER-67, DRIVER-69, DRIVER-70"
    assert answer["results"] == 2
    grown, lost, regrown = answer["restarts"]
    assert grown["cause"] == regrown["cause"] == "1 task more is there", "DRIVER-69"
    assert "lost" in lost["cause"], "DRIVER-70"
    assert answer["told"] == answer["sizes"]
    assert [(of["kind"], of["cost"]["ranks"]) for of in answer["restarts"]] == [
        ("resized", 2),
        ("resized", 1),
        ("resized", 2),
    ], "DRIVER-70"
    steps = [of["cost"]["steps"] for of in answer["restarts"]]
    assert all(count is not None and 0 <= count <= 10 for count in steps), "it saves each tenth step"
    counts = answer["counts"]
    assert (counts["restarts.resized"], counts["restarts.replaced"]) == (3, 0)
    assert counts["lost.steps"] == sum(steps)


@whole("ranks, for a state of the loader")
def test_each_row_of_an_epoch_comes_once_whatever_number_of_ranks_takes_it() -> None:
    answer = in_cluster(
        """
        def train(folder):
            import os, time
            import torch
            import torch.distributed as dist
            from phalanx import checkpoint

            dist.init_process_group("gloo")
            rank, size = dist.get_rank(), dist.get_world_size()
            loader = phalanx.data("train").loader(batch_size=4 // size, shuffle=True, seed=3, uneven="drop")
            step, rows, sizes = 0, [], []
            if (saved := checkpoint.latest()) is not None:
                step, state = saved
                rows, sizes = state["rows"], state["sizes"]
                loader.load_state_dict(state["data"])
            sizes = [*sizes, size]
            for batch in loader:
                parts = [torch.empty_like(batch["id"]) for _ in range(size)]
                dist.all_gather(parts, batch["id"])
                rows += torch.cat(parts).tolist()
                step += 1
                if step % 10 == 0 and rank == 0:
                    checkpoint.save({"rows": rows, "sizes": sizes, "data": loader.state_dict()}, step)
                if not os.path.exists(os.path.join(folder, "enough")):
                    time.sleep(0.05)
            return rows, sizes

        until(lambda: executors() == 2)
        rows = phalanx.stored(spark.range(8000), os.path.join(folder, "rows"))
        hold_a_slot()
        run = elastic("python").start(train, folder, data={"train": rows})
        runs_with(run, 1)
        free_the_slot()
        runs_with(run, 2)
        executors_here()[0].kill()
        runs_with(run, 1)
        enough()
        rows, sizes = run.result(60)
        answer = dict(rows=rows, sizes=sizes)
        """,
        conf=FIXED,
    )
    assert answer["sizes"][:3] == [1, 2, 1]
    assert sorted(answer["rows"]) == list(range(8000)), "PLAN-8"


@whole("a cluster of its own")
def test_a_run_that_never_gets_its_most_ends_with_what_it_has_and_leaves_no_job() -> None:
    answer = in_cluster(
        """
        distributor = elastic("python", least=1, most=3)
        run = distributor.start(train, folder)
        runs_with(run, 2)
        enough()
        sizes, steps = run.result(60)
        until(lambda: not jobs(), 20)
        answer = dict(sizes=sizes, failed=None)
        """,
        conf=BREATHES | {"spark.dynamicAllocation.maxExecutors": "2"},
    )
    assert answer["sizes"][-1] == 2, "STAGE-14"


@whole("a cluster of its own")
def test_a_run_ends_though_others_hold_the_slots_that_it_still_looked_for() -> None:
    answer = in_cluster(
        """
        run = elastic("python", least=1, most=3).start(train, folder)
        runs_with(run, 2)
        for _ in range(2):
            take_a_slot(40)
        enough()
        sizes, steps = run.result(60)
        stages = lambda: [thread.name for thread in threading.enumerate() if thread.name == "phalanx-stage"]
        until(lambda: not stages(), 10)
        answer = dict(sizes=sizes)
        """,
        conf=FIXED,
    )
    assert answer["sizes"][-1] == 2, "STAGE-14"


def test_what_an_elastic_run_can_not_be_is_said_before_anything_starts(tmp_path: Path) -> None:
    answer = in_session(
        "local-cluster[2,1,1024]",
        """
        import phalanx
        said = []
        def refused(**options):
            try:
                phalanx.TorchDistributor(**(dict(local_mode=False, use_gpu=False) | options)).run(print)
            except (ValueError, RuntimeError) as problem:
                said.append(str(problem))
        refused(num_processes=(4, 2))
        refused(num_processes=(0, 2))
        refused(num_processes=(1, 2), gang="barrier")
        refused(num_processes=2, min_processes=3)
        refused(num_processes=(3, 4))
        local = phalanx.TorchDistributor(num_processes=(1, 2), use_gpu=False).run(
            lambda: __import__("os").environ["WORLD_SIZE"]
        )
        answer = dict(said=said, local=local)
        """,
        conf=FIXED | {"spark.phalanx.slots.timeout": "1s"},
    )
    turned, none, barrier, more, many = answer["said"]
    assert turned == "num_processes is (4, 2), but has to be the fewest and the most ranks: (2, 4)"
    assert none == "num_processes has to be a positive integer"
    assert "the tasks of a barrier stage are always as many" in barrier
    assert more == "the run can't go on with at least 3 ranks, since it has at most 2"
    assert "the run needs 3 task slots" in many
    assert answer["local"] == "2", "local mode doesn't resize"
