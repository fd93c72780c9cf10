"""The first run of a fresh session: ours over each stage beside pyspark's TorchDistributor, nothing warmed.

    python tests/bench/first_run.py [--quick] [--reps N]

Every figure is taken in a process of its own: a session is made, the executors have registered, and then the first
`.run()` of the application is timed, with two ranks that import torch, make a gloo group and all-reduce once.
`session` is what making it took before. Local mode runs in a session without executors. All take turns.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import fresh_processes
from launch import await_executors, measure, quiet_builder

CASES = {
    "first run, local-cluster": ("phalanx", "python stage", "pyspark"),
    "first run, local mode": ("phalanx", "pyspark"),
}
METRICS = {"session": "session", "first": "first line", "returned": "return"}


def one(impl: str, case: str) -> dict[str, float]:
    """The seconds of a first run, in this process."""
    import phalanx
    from pyspark.ml.torch.distributor import TorchDistributor as Incumbent

    local = case.endswith("local mode")
    began = time.monotonic()
    builder = quiet_builder("local[1]") if local else quiet_builder()
    if impl == "phalanx":
        builder = builder.config(map=phalanx.spark_conf())
    spark = builder.getOrCreate()
    if not local:
        await_executors(spark)
    ready = time.monotonic() - began
    of: Any = Incumbent if impl == "pyspark" else phalanx.TorchDistributor
    figures = measure(of(num_processes=2, local_mode=local, use_gpu=False))
    spark.stop()
    return figures | {"session": ready}


if __name__ == "__main__":
    fresh_processes("first_run", __doc__, one, CASES, METRICS)
