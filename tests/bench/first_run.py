"""The first run of a fresh session: ours over each stage beside pyspark's TorchDistributor, nothing warmed.

    python tests/bench/first_run.py [--quick] [--reps N]

Every figure is taken in a process of its own: a session is made, the executors have registered, and then the first
`.run()` of the application is timed, with two ranks that import torch, make a gloo group and all-reduce once.
`session` is what making it took before, and `import torch` what that takes a fresh Python right before the session:
no start can be without it. The phases of our runs say where each second goes: those of the slower rank, since the
call. Local mode runs in a session without executors. All take turns.
"""

from __future__ import annotations

import subprocess
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
PHASES = (
    "hub open",
    "first join",
    "all joined",
    "rank started",
    "rank ready",
    "user code",
    "all ranks ended",
)
METRICS = {
    "torch": "import torch",
    "session": "session",
    **{phase: f"phase: {phase}" for phase in PHASES},
    "first": "first line",
    "group": "process group",
    "reduced": "first all-reduce",
    "returned": "return",
}


def one(impl: str, case: str) -> dict[str, float]:
    """The seconds of a first run, in this process."""
    import phalanx
    from pyspark.ml.torch.distributor import TorchDistributor as Incumbent

    local = case.endswith("local mode")
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    imported = time.monotonic() - began
    began = time.monotonic()
    builder = quiet_builder("local[1]") if local else quiet_builder()
    if impl == "phalanx":
        builder = builder.config(map=phalanx.spark_conf())
    spark = builder.getOrCreate()
    if not local:
        await_executors(spark)
    ready = time.monotonic() - began
    of: Any = Incumbent if impl == "pyspark" else phalanx.TorchDistributor
    distributor = of(num_processes=2, local_mode=local, use_gpu=False)
    figures = measure(distributor) | {"torch": imported, "session": ready}
    if impl != "pyspark":
        for phase in distributor.last_run.phases:
            figures[phase.name] = max(phase.seconds, figures.get(phase.name, 0.0))
    spark.stop()
    return figures


if __name__ == "__main__":
    fresh_processes("first_run", __doc__, one, CASES, METRICS)
