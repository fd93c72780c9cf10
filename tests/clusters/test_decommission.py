"""Workers that are decommissioned: from Spark's word to a saved checkpoint, and on elsewhere."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import phalanx
import pytest
from support.breathing import BREATHES, PARTS
from support.cluster import Host, Standalone
from support.interpreters import bare_python
from support.own_session import in_session
from support.places import ROOT
from support.programs import Program, eventually, spark_submit
from support.tiers import whole

pytestmark = [pytest.mark.timeout(300), whole("a standalone cluster")]

DECOMMISSION = {"spark.decommission.enabled": "true"}
# Spark decommissions idle executors, too. Between two attempts of a run they are idle for some seconds.
STAYS = {"spark.dynamicAllocation.executorIdleTimeout": "60s"}
# Ranks that leave a mark with their host's address at the twentieth step of each attempt.
TRAINING = """
def train(folder, steps, save_at=None):
    import collections, os, time
    import torch
    import torch.distributed as dist
    from phalanx import checkpoint

    class Slow:
        def __reduce__(self):
            open(os.path.join(folder, "saves"), "w").close()
            time.sleep(5)
            return collections.OrderedDict, ()

    dist.init_process_group("gloo")
    rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    saved = checkpoint.latest(directory=folder)
    first, state = saved if saved is not None else (0, torch.zeros(1))
    for step in range(first, steps):
        checkpoint.save_if_preempted(state, step, directory=folder)
        if step == save_at and rank == "0":
            checkpoint.save({"state": state, "slow": Slow()}, step, directory=folder)
        ones = torch.ones(1)
        dist.all_reduce(ones)
        state += ones / dist.get_world_size()
        if step == first + 20:
            with open(os.path.join(folder, f"new-{attempt}-{rank}"), "w") as file:
                file.write(os.environ["SPARK_LOCAL_IP"])
            os.rename(file.name, os.path.join(folder, f"trains-{attempt}-{rank}"))
        time.sleep(0.05)
    return first, int(state), attempt
"""
PROGRAM = (
    TRAINING
    + """
import os, signal, tempfile
folder = tempfile.mkdtemp()

def there(name):
    return os.path.exists(os.path.join(folder, name))

def trains(attempt=0):
    return all(there(f"trains-{attempt}-{rank}") for rank in (0, 1))

def decommission(attempt=0):
    with open(os.path.join(folder, f"trains-{attempt}-0")) as file:
        os.kill(workers[file.read()], signal.SIGPWR)
"""
)
Cluster = Callable[[int], Standalone]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """So many hosts; each has room for the whole run."""
    started: list[Standalone] = []

    def start(hosts: int) -> Standalone:
        named = [Host(f"127.0.0.{number + 1}") for number in range(hosts)]
        started.append(Standalone(tmp_path / "cluster", named, cores=2, daemon_conf=DECOMMISSION))
        return started[0]

    yield start
    for standalone in started:
        standalone.stop()


def conf_of(gang: str) -> dict[str, str]:
    elastic = (
        BREATHES | STAYS
        if gang == "tasks"
        else {"spark.executor.cores": "1", "spark.executor.memory": "512m"}
    )
    return (
        elastic
        | DECOMMISSION
        | {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.jars": phalanx.jar_path(),
            "spark.phalanx.grace": "2s",
            "spark.deploy.spreadOut": "true",
        }
    )


def workers(cluster: Standalone) -> dict[str, int]:
    return {host.address: worker.pid for host, worker in zip(cluster.hosts, cluster.workers, strict=True)}


def in_application(cluster: Standalone, gang: str, code: str, conf: dict[str, str] | None = None) -> Any:
    program = f"{PARTS}\nworkers = {workers(cluster)}\n{PROGRAM}\n{textwrap.dedent(code)}"
    return in_session(cluster.url, program, conf=conf_of(gang) | (conf or {}), timeout=280)


@pytest.mark.parametrize("starter", ["python", "jvm"])
@pytest.mark.parametrize("gang", ["barrier", "tasks"])
def test_ranks_save_before_a_decommissioned_worker_goes_and_go_on_elsewhere(
    cluster: Cluster, starter: str, gang: str
) -> None:
    answer = in_application(
        cluster(2),
        gang,
        f"""
        run = of({starter!r}).start(train, folder, 400)
        until(trains, 120)
        time.sleep(1)
        decommission()
        result = run.result(150)
        answer = dict(result=result, restarts=run.snapshot()["restarts"])
        """,
    )
    first, steps, attempts = answer["result"]
    assert first > 20
    assert steps == 400, "no step is done twice, and none is left out"
    assert attempts == "1"
    (restart,) = answer["restarts"]
    assert "decommissioned by Spark" in restart["cause"], restart


@pytest.mark.parametrize("starter", ["python", "jvm"])
def test_a_worker_that_is_decommissioned_while_a_rank_saves_is_heard_of_after_that(
    cluster: Cluster, starter: str
) -> None:
    answer = in_application(
        cluster(2),
        "tasks",
        f"""
        run = of({starter!r}).start(train, folder, 200, 40)
        until(lambda: there("saves"), 120)
        decommission()
        result = run.result(150)
        answer = dict(result=result, restarts=run.snapshot()["restarts"])
        """,
    )
    first, steps, attempts = answer["result"]
    assert first > 40, "DRIVER-53: what was being saved is whole, and the step after it is where ranks leave"
    assert steps == 200, "no step is done twice, and none is left out"
    assert (attempts, len(answer["restarts"])) == ("1", 1), "DRIVER-57"


@pytest.mark.parametrize("starter", ["python", "jvm"])
def test_of_two_workers_that_are_decommissioned_one_after_the_other_ranks_leave_both(
    cluster: Cluster, starter: str
) -> None:
    answer = in_application(
        cluster(3),
        "tasks",
        f"""
        run = of({starter!r}).start(train, folder, 600)
        for attempt in (0, 1):
            until(lambda: trains(attempt), 120)
            time.sleep(1)
            decommission(attempt)
        result = run.result(150)
        answer = dict(result=result, restarts=run.snapshot()["restarts"])
        """,
    )
    first, steps, attempts = answer["result"]
    assert first > 40
    assert steps == 600, "no step is done twice, and none is left out"
    assert attempts == "2"
    causes = [restart["cause"] for restart in answer["restarts"]]
    assert len(causes) == 2, "DRIVER-57: the run has no restarts"
    assert all("decommissioned by Spark" in cause for cause in causes), causes


@pytest.mark.parametrize("starter", ["python", "jvm"])
def test_a_worker_that_is_decommissioned_while_others_are_awaited_is_left_once_ranks_run(
    cluster: Cluster, starter: str
) -> None:
    answer = in_application(
        cluster(2),
        "tasks",
        f"""
        release = os.path.join(folder, "release")

        def hold(folder, release):
            import os, time
            from pyspark import TaskContext
            with open(os.path.join(folder, f"held-{{TaskContext.get().partitionId()}}"), "w") as file:
                file.write(os.environ["SPARK_LOCAL_IP"])
            while not os.path.exists(release):
                time.sleep(0.1)

        def held():
            files = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("held-")]
            return [open(file).read() for file in files]

        # Three slots of four.
        holds = lambda: spark.sparkContext.parallelize(range(3), 3).foreach(lambda _: hold(folder, release))
        threading.Thread(target=holds, daemon=True).start()
        until(lambda: len(list(filter(None, held()))) == 3, 120)
        run = of({starter!r}).start(train, folder, 200)
        until(lambda: executors() == 4, 60)
        time.sleep(5)  # one of the two tasks waits at the hub by then
        # Where one task holds a slot, the other slot is the run's.
        [host] = [host for host in set(held()) if held().count(host) == 1]
        os.kill(workers[host], signal.SIGPWR)
        time.sleep(3)
        open(release, "w").close()
        result = run.result(150)
        after = [open(os.path.join(folder, f"trains-1-{{rank}}")).read() for rank in (0, 1)]
        answer = dict(result=result, restarts=run.snapshot()["restarts"], left=host not in after)
        """,
    )
    _first, steps, attempts = answer["result"]
    assert steps == 200, "no step is done twice, and none is left out"
    assert attempts == "1"
    assert answer["left"]
    (restart,) = answer["restarts"]
    assert "decommissioned by Spark" in restart["cause"], restart


@pytest.mark.parametrize("gang", ["barrier", "tasks"])
def test_the_ranks_of_a_scala_application_leave_a_decommissioned_worker(
    cluster: Cluster, gang: str, tmp_path: Path
) -> None:
    folder = tmp_path / "marks"
    folder.mkdir()
    file = tmp_path / "train.py"
    file.write_text(f"{TRAINING}\nimport phalanx\nphalanx.set_result(list(train({str(folder)!r}, 400)))\n")
    standalone = cluster(2)
    conf = conf_of(gang) | {
        "spark.master": standalone.url,
        "spark.pyspark.python": str(bare_python(tmp_path / "python")),
    }
    [jar] = (ROOT / "jvm" / "examples" / "target").glob("phalanx-examples_2.13-*.jar")
    command = spark_submit(
        "--class", "dev.phalanx.examples.TrainDigits", jar, "--ranks=2", f"--file={file}", conf=conf
    )
    with Program(command, tmp_path / "out") as program:
        marks = [folder / f"trains-0-{rank}" for rank in (0, 1)]
        eventually("both ranks train", 120, lambda: all(mark.exists() for mark in marks))
        os.kill(workers(standalone)[marks[0].read_text()], signal.SIGPWR)
        assert program.ends(150) == 0, program.text
    [result] = [line for line in program.text.splitlines() if line.startswith("result: ")]
    first, steps, attempts = json.loads(result.removeprefix("result: "))
    assert first > 20
    assert (steps, attempts) == (400, "1"), "no step is done twice, and none is left out"
    assert " is to go: decommissioned by Spark" in program.text
    assert "[phalanx] preempted, restart 1: " in program.text, "STAGE-12: executors came for it"
