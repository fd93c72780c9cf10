"""What tests of gangs of tasks share: the settings of an application whose executors come and go, and parts of its
program."""

from __future__ import annotations

BREATHES = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}

PARTS = """
import logging, threading, time
import phalanx, psutil

def is_executor(process):
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False

def executors_here():
    return [process for process in psutil.Process().children(recursive=True) if is_executor(process)]

def executors():
    return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1

def train(step=0):
    import os
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return int(ones), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def of(stage, **options):
    spark.conf.set("spark.phalanx.stage", stage)
    return phalanx.TorchDistributor(num_processes=2, local_mode=False, use_gpu=False, **options)

def jobs():
    status = spark.sparkContext.statusTracker()
    return list(status.getActiveJobsIds())

def stages():
    status = spark.sparkContext.statusTracker()
    infos = map(status.getStageInfo, status.getActiveStageIds())
    return [info for info in infos if info is not None]  # one that has ended meanwhile

def all_jobs():
    return list(spark.sparkContext.statusTracker().getJobIdsForGroup(None))

def take_a_slot(seconds):
    sleep = lambda _: __import__("time").sleep(seconds)
    hold = lambda: spark.sparkContext.parallelize([0], 1).foreach(sleep)
    threading.Thread(target=hold, daemon=True).start()
    until(lambda: any(stage.numActiveTasks for stage in stages()))

def until(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)
"""
