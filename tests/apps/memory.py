"""A driver of ranks that have memory of their own, under dynamic allocation on YARN.

memory.py TAKEN_MIB RANK_MIB STAGE...    trains over each stage: two ranks with RANK_MIB each, that take TAKEN_MIB

Prints MEMORY and, as JSON by stage, the ranks' results and the most memory that YARN gave the application.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from phalanx import TorchDistributor
from pyspark.sql import SparkSession


def takes(mib: int) -> int:
    """Takes so much memory for longer than YARN looks away."""
    import time

    taken = bytearray(mib << 20)
    taken[::4096] = b"x" * len(taken[::4096])
    time.sleep(5)
    return len(taken) >> 20


def used_mib(spark: Any) -> int:
    """What YARN has given the application."""
    yarn = spark.sparkContext._jvm.org.apache.hadoop.yarn
    client = yarn.client.api.YarnClient.createYarnClient()
    client.init(spark.sparkContext._jsc.hadoopConfiguration())
    client.start()
    number = yarn.api.records.ApplicationId.fromString(spark.sparkContext.applicationId)
    usage = client.getApplicationReport(number).getApplicationResourceUsageReport()
    used: int = usage.getUsedResources().getMemorySize()
    client.stop()
    return used


def main() -> None:
    taken_mib, rank_mib, *stages = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    seen = {}
    for stage in stages:
        spark.conf.set("spark.phalanx.stage", stage)
        run = TorchDistributor(
            num_processes=2, local_mode=False, use_gpu=False, memory_per_rank=f"{rank_mib}m"
        ).start(takes, int(taken_mib))
        most = 0
        while not run.done:
            most = max(most, used_mib(spark))
            time.sleep(0.2)
        seen[stage] = {"results": run.results(), "most_mib": most}
    print("MEMORY", json.dumps(seen), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
