"""Many jobs in one application leave nothing: no descriptor, thread, process or file, in the driver or an executor."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from phalanx import TorchDistributor
from programs import below, eventually

pytestmark = pytest.mark.timeout(300)

JOBS, SETTLED = 100, 10
# Pools of Spark's and the JDK's own that fill up to their bound as blocks and connections come and go.
SPARKS_POOLS = (
    "process reaper",
    "block-manager-",
    "shuffle-server-",
    "shuffle-client-",
    "rpc-server-",
    "rpc-client-",
)


def thread_names(pid: int) -> Counter[str]:
    """How many threads a process has by each name, of which Linux keeps fifteen bytes."""
    names: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except OSError:  # it has ended
            continue
        if not name.startswith(SPARKS_POOLS):
            names[name] += 1
    return names


def descriptors(process: psutil.Process, executors: list[psutil.Process]) -> int:
    """How many descriptors a process has open, but for what Spark opens once, at a moment of its own choice.

    That is the two of each event loop (one of ours that leaked would leave its socket, too), and between two
    executors one connection in each direction, over which they give each other blocks of broadcasts.
    """
    count = 0
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(OSError):
            kind = os.readlink(f"/proc/{process.pid}/fd/{name}")
            count += not kind.startswith(("anon_inode:[eventpoll]", "anon_inode:[eventfd]"))
    if process in executors:
        others = {c.laddr for other in executors if other != process for c in other.net_connections("tcp")}
        to_others = [c for c in process.net_connections("tcp") if c.raddr and c.raddr in others]
        count -= min(len(to_others), 2 * (len(executors) - 1))
    return count


class Usage:
    """What this process, the driver's JVM and the executors hold."""

    def __init__(self, spark: Any) -> None:
        me = psutil.Process()
        # Not the daemons of the standalone cluster that other tests have.
        daemons = "org.apache.spark.deploy.master", "org.apache.spark.deploy.worker"
        jvms = [
            p
            for p in below(me.pid)
            if p.name() == "java" and not any(word.startswith(daemons) for word in p.cmdline())
        ]
        assert len(jvms) == 3, jvms
        executors = [
            p for p in jvms if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in p.cmdline()
        ]
        assert len(executors) == 2, executors
        self.descriptors = {p.pid: descriptors(p, executors) for p in [me, *jvms]}
        self.threads = {p.pid: thread_names(p.pid) for p in [me, *jvms]}
        self.processes = sorted(p.pid for p in below(me.pid) if p.status() != psutil.STATUS_ZOMBIE)
        self.files = len(files_of(spark))

    def growth(self, before: Usage) -> list[str]:
        """What there is more of than before, in words; nothing if all is well."""
        found = []
        for pid, count in self.descriptors.items():
            if count > before.descriptors[pid]:
                found.append(f"{count} descriptors of {pid}, were {before.descriptors[pid]}")
        for pid, names in self.threads.items():
            if names.total() > before.threads[pid].total():
                found.append(f"threads of {pid}: {names - before.threads[pid]}")
        if new := set(self.processes) - set(before.processes):
            found.append(f"processes: {new}")
        if self.files > before.files:
            found.append(f"{self.files} files, were {before.files}")
        return found


def files_of(spark: Any) -> list[str]:
    """Files of ours in the folders for temporary files: the system's, the application's and the executors'."""
    folders = [Path(tempfile.gettempdir()), Path(spark.sparkContext._temp_dir).parent]
    found = [str(path) for folder in folders for path in folder.glob("phalanx-*")]
    for process in below(os.getpid()):
        if process.name() == "java" and (local := process.environ().get("SPARK_LOCAL_DIRS")):
            # Of a finished job its logs stay, those of the newest eight jobs.
            found += [str(path) for path in Path(local).rglob("*") if "phalanx" in str(path)]
    return found


def by_scala(spark: Any) -> Callable[[], object]:
    """A job of the Scala API whose ranks are native programs."""
    distributor = spark.sparkContext._jvm.dev.phalanx.spark.TorchDistributor(2, False, False)
    return lambda: distributor.runProgram(["/bin/true"])


@pytest.fixture(params=["jvm", "scala"])
def run_a_job(request: pytest.FixtureRequest, spark: Any) -> Any:
    if request.param == "scala":
        yield by_scala(spark)
        return
    spark.conf.set("spark.phalanx.stage", request.param)
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    yield lambda: distributor.run(lambda: None)
    spark.conf.unset("spark.phalanx.stage")


def test_a_hundred_jobs_leave_no_more_than_ten_did(run_a_job: Callable[[], object], spark: Any) -> None:
    for _ in range(SETTLED):
        run_a_job()
    before = Usage(spark)
    for _ in range(JOBS - SETTLED):
        run_a_job()
    growth: list[str] = []

    def as_before() -> bool:
        growth[:] = Usage(spark).growth(before)
        return not growth

    try:
        eventually("as much as after the tenth", 30, as_before)
    except AssertionError:
        pytest.fail(f"more than after {SETTLED} jobs: {growth}")


def test_two_jobs_at_once_in_one_application_do_not_meet_and_leave_nothing(
    spark: Any, tmp_path: Path
) -> None:
    def train(mine: str, others: str) -> str:
        import os
        import time

        open(mine, "w").close()
        while not os.path.exists(others):
            time.sleep(0.02)
        return os.environ["MASTER_PORT"]

    spark.conf.set("spark.phalanx.stage", "jvm")
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    try:
        distributor = TorchDistributor(num_processes=1, local_mode=False, use_gpu=False)
        distributor.run(lambda: None)
        before = Usage(spark)
        runs = [distributor.start(train, one, other), distributor.start(train, other, one)]
        ports = {run.result(60) for run in runs}
    finally:
        spark.conf.unset("spark.phalanx.stage")
    assert len(ports) == 2, "each has a store of its own"
    eventually("no process more", 30, lambda: set(Usage(spark).processes) <= set(before.processes))
