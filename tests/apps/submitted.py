"""A Python application for spark-submit, whose ranks need what came with it: a module, a file, an environment.

Prints one line of JSON: what each rank found.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import recipe


def train(rate: float) -> dict[str, Any]:
    import os
    import sys

    import phalanx
    import recipe
    import torch
    import torch.distributed as dist
    from pyspark import SparkFiles

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    with open(SparkFiles.get("data.txt")) as file:
        data = file.read()
    return {
        "ranks": total.item(),
        "rate": recipe.doubled(rate),
        "data": data,
        "environment": os.environ.get("ENVIRONMENT"),
        "python": sys.executable,
        "phalanx": phalanx.__file__,
    }


def main() -> None:
    from phalanx import TorchDistributor
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False, warm=True)
    results = distributor.start(train, recipe.doubled(float(sys.argv[1]))).results(120)
    # In one piece: below spark-submit each write goes out by itself, and a line of the JVM could come between.
    print(f"SUBMITTED {json.dumps(results)}\n", end="", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
