"""What an application holds: descriptors, threads, processes, files and memory of its driver, executors and pools.

Two looks at it are compared. What Spark and the JDK make at a moment of their own choice is left out by name.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from support.programs import below

# Pools of Spark's and the JDK's own that fill up to their bound as blocks and connections come and go.
SPARKS_POOLS = (
    "process reaper",
    "block-manager-",
    "shuffle-server-",
    "shuffle-client-",
    "rpc-server-",
    "rpc-client-",
)
# Daemons of the standalone cluster that other tests have.
DAEMONS = "org.apache.spark.deploy.master", "org.apache.spark.deploy.worker"


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


def resident_mb(processes: list[psutil.Process]) -> int:
    """The memory of the largest of these processes."""
    largest = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            largest = max(largest, int(process.memory_info().rss) >> 20)
    return largest


def named(processes: list[psutil.Process]) -> list[tuple[psutil.Process, str]]:
    """Those that run, with their names."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, process.name()))
    return found


class Usage:
    """What this process, the driver's JVM and the executors hold; and their warm pools and Python workers."""

    def __init__(self, spark: Any) -> None:
        me = psutil.Process()
        all_below = named(below(me.pid))
        jvms = [
            p
            for p, name in all_below
            if name == "java" and not any(word.startswith(DAEMONS) for word in p.cmdline())
        ]
        assert len(jvms) == 3, jvms
        executors = [
            p for p in jvms if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in p.cmdline()
        ]
        assert len(executors) == 2, executors
        self.descriptors = {p.pid: descriptors(p, executors) for p in [me, *jvms]}
        self.threads = {p.pid: thread_names(p.pid) for p in [me, *jvms]}
        self.processes = Counter(name for _, name in all_below)
        self.pids = {p.pid for p, _ in all_below}
        self.files = len(files_of(spark))
        self.shared_memory = set(os.listdir("/dev/shm"))
        pools = [p for p, name in all_below if name == "phalanx-pool"]
        workers = [p for p, _ in all_below if is_worker(p)]
        self.memory_mb: dict[str, int] = {
            "the driver": resident_mb([me]),
            "its JVM": resident_mb([p for p in jvms if p not in executors]),
            "an executor": resident_mb(executors),
            "a pool": resident_mb(pools),
            "a Python worker": resident_mb(workers),
        }

    def growth(self, before: Usage) -> list[str]:
        """What there is more of than before, but for memory, in words; nothing if all is well."""
        found = []
        for pid, count in self.descriptors.items():
            if count > before.descriptors[pid]:
                found.append(f"{count} descriptors of {pid}, were {before.descriptors[pid]}")
        for pid, names in self.threads.items():
            if names.total() > before.threads[pid].total():
                found.append(f"threads of {pid}: {names - before.threads[pid]}")
        if self.processes - before.processes:
            found.append(f"processes: {self.processes - before.processes}")
        if self.files > before.files:
            found.append(f"{self.files} files, were {before.files}")
        if new := self.shared_memory - before.shared_memory:
            found.append(f"in /dev/shm: {new}")
        return found

    def memory_growth(self, before: Usage, bounds_mb: dict[str, int]) -> list[str]:
        """Which process has grown by more than its bound."""
        return [
            f"{whose} has {self.memory_mb[whose]} MB, had {before.memory_mb[whose]}"
            for whose, bound in bounds_mb.items()
            if self.memory_mb[whose] > before.memory_mb[whose] + bound
        ]


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "pyspark.daemon" in " ".join(process.cmdline())
    return False


def files_of(spark: Any) -> list[str]:
    """Files of ours in the folders for temporary files: the system's, the application's and the executors'."""
    folders = [Path(tempfile.gettempdir()), Path(spark.sparkContext._temp_dir).parent]
    found = [str(path) for folder in folders for path in folder.glob("phalanx-*")]
    for process in below(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "java" and (local := process.environ().get("SPARK_LOCAL_DIRS")):
                # Of a finished job its logs stay, those of the newest eight jobs.
                found += [str(path) for path in Path(local).rglob("*") if "phalanx" in str(path)]
    return found
