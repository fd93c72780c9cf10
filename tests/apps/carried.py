"""A driver with two hosts and a run of one rank: over each stage that it is told, the blocks of the other host reach
the rank, also after the executor there was lost. Prints one line of JSON.

carried.py STAGE...

DRIVER_CONF   the Spark settings as JSON
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def feed() -> dict[str, Any]:
    """One shuffled epoch: the rows, and where their blocks were."""
    import phalanx

    data = phalanx.data("train")
    loader = data.loader(batch_size=16, shuffle=True, seed=3, uneven="pad")
    rows = [row for batch in loader for row in batch["id"][batch["mask"]].tolist()]
    return {
        "whole": sorted(rows) == list(range(4000)),
        "blocks": sorted(set(data._source._index.hosts)),
    }


def feed_until_lost(folder: str) -> bool:
    """The first attempt reads for ever, and tells which executor it is on; the next one whether it read all rows."""
    import os

    import phalanx
    import psutil

    data = phalanx.data("train")
    loader = data.loader(batch_size=16)
    rows = [row for batch in loader for row in batch["id"].tolist()]
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        return sorted(rows) == list(range(4000))
    assert len(set(data._source._index.hosts)) == 2, "or nobody is missed"
    above = [one.pid for one in psutil.Process().parents() if "CoarseGrained" in " ".join(one.cmdline())]
    with open(f"{folder}/.mine", "w") as file:
        file.write(str(above[0]))
    os.rename(file.name, f"{folder}/mine")
    while True:
        for _ in loader:
            pass


def kill_the_other_executor(application: str, mine: int) -> None:
    """Kills the application's executor on which no rank is."""
    import psutil

    for one in psutil.process_iter():
        with suppress(psutil.Error):
            words = one.cmdline()
            if application in words and any("CoarseGrained" in word for word in words) and one.pid != mine:
                one.kill()


def wait_for_both_hosts(spark: Any) -> None:
    """Waits until the driver has an executor on each host that takes tasks: one that was killed comes again. Under
    dynamic allocation tasks that wait bring them."""
    context, until = spark.sparkContext, time.monotonic() + 60
    comes_and_goes = spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    while context._jsc.sc().getExecutorMemoryStatus().size() < 3 and time.monotonic() < until:
        if comes_and_goes:
            context.parallelize(range(4), 4).foreach(lambda _: time.sleep(1))
        time.sleep(0.05)
    if not comes_and_goes:
        context.parallelize(range(4), 4).barrier().mapPartitions(iter).collect()


@contextmanager
def losing_the_carrier(distributor: Any, data: Any, application: str) -> Iterator[Any]:
    """A run whose rank reads all, and whose executor on the other host is killed meanwhile."""
    wait_for_both_hosts(data["train"].sparkSession)
    with tempfile.TemporaryDirectory() as folder:
        run = distributor.start(feed_until_lost, folder, data=data)
        mine = Path(folder, "mine")
        until = time.monotonic() + 120
        while not mine.exists() and not run.done and time.monotonic() < until:
            time.sleep(0.05)
        if mine.exists():
            kill_the_other_executor(application, int(mine.read_text()))
        yield run


def carried(stage: str, spark: Any) -> dict[str, Any]:
    from phalanx import TorchDistributor, TrainingError

    spark.conf.set("spark.phalanx.stage", stage)
    application = spark.sparkContext.applicationId
    data = {"train": spark.range(0, 4000, 1, 8)}

    def distributor(**more: Any) -> Any:
        return TorchDistributor(num_processes=1, local_mode=False, use_gpu=False, **more)

    wait_for_both_hosts(spark)
    seen: dict[str, Any] = {"fed": distributor().run(feed, data=data)}
    with losing_the_carrier(distributor(max_restarts=1), data, application) as run:
        seen["again"] = run.result(120)
    with losing_the_carrier(distributor(), data, application) as run:
        try:
            run.result(120)
        except TrainingError as error:
            print("the loss:", error)
            seen["lost"] = [error.kind, error.rank, str(error)]
    until = time.monotonic() + 10
    while (left := list(spark.sparkContext.statusTracker().getActiveJobsIds())) and time.monotonic() < until:
        time.sleep(0.1)
    seen["left"] = left
    return seen


def main() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config(map=json.loads(os.environ["DRIVER_CONF"])).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    seen: dict[str, Any] = {}
    for stage in sys.argv[1:]:
        try:
            seen[stage] = carried(stage, spark)
        except Exception:
            seen[stage] = {"error": traceback.format_exc()}
    print("CARRIED", json.dumps(seen), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
