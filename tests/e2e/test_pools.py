"""The warm pools of a cluster: whose they are, and what they outlive."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import psutil
import pytest
from phalanx import TorchDistributor
from support.programs import below, eventually, executors, gone

pytestmark = pytest.mark.timeout(150)


def python_workers() -> list[int]:
    """The workers of PySpark's daemons on the executors; not the daemons."""
    found = []
    for executor in executors(os.getpid()):
        for process in below(executor.pid):
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                words = [process.cmdline(), parent.cmdline() if parent else []]
                if all("pyspark.daemon" in each for each in words):
                    found.append(process.pid)
    return found


def test_the_pool_of_python_workers_is_there_for_the_workers_after_them(spark: Any) -> None:
    def pool_of_rank() -> tuple[int, str]:
        import os

        import psutil

        guard = psutil.Process(os.getppid())
        pool = guard.parent()
        assert pool is not None
        return pool.pid, pool.name()

    spark.conf.set("spark.phalanx.stage", "python")
    try:
        distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
        before = sorted(distributor.start(pool_of_rank).results(90))
        assert {name for _, name in before} == {"phalanx-pool"}
        workers = python_workers()
        assert len(workers) >= 2
        # As Spark does after a minute without a task.
        for pid in workers:
            os.kill(pid, 9)
        eventually("the workers are gone", 20, lambda: gone(workers))
        assert sorted(distributor.start(pool_of_rank).results(90)) == before
    finally:
        spark.conf.unset("spark.phalanx.stage")
