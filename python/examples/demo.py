"""`make demo`: two ranks on an embedded Spark cluster train a network on handwritten digits.

Prints what the ranks print, how well the trained network does on images that it has not seen, beside the same
training in one process, and where the time went: in the first run of the session, and in the second. Exits with 1
where the network is worse than it should be.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from phalanx import Run
    from pyspark.sql import SparkSession

LEAST_ACCURACY = 0.95
LARGEST_DIFFERENCE = 0.02

# What the table shows: a name, the phase of the run that ends it, and what happens meanwhile.
STEPS = (
    ("submit", "hub open", "check the cluster, pack the function, open the hub"),
    ("join", "all joined", "Spark starts its first stage; the tasks join the hub"),
    ("first line of user code", "user code", "each task starts its rank"),
    ("process group ready", "process group ready", "import torch, init_process_group, wrap the model"),
    ("training", "training done", "load the digits, train"),
    ("return", "returned", "weights to the driver, ranks and stage end"),
)


def main() -> int:
    began = time.monotonic()
    say("Phalanx demo: 2 ranks on an embedded Spark cluster learn to read handwritten digits (UCI).")
    spark = start_spark()
    say(f"Spark local-cluster[2,1,1024] is up after {time.monotonic() - began:.1f} s.")
    try:
        return train_and_report(spark)
    finally:
        spark.stop()


def train_and_report(spark: SparkSession) -> int:
    # The driver loads torch while nothing is timed: it needs torch to evaluate the weights.
    import digits
    from phalanx import TorchDistributor

    untrained = digits.accuracy(digits.train(epochs=0))
    say(f"An untrained network tells {untrained:.0%} of the test images right.")

    def timed_run(**options: str) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False, **options)
        asked = time.monotonic()
        weights = distributor.run(digits.train)
        seconds = time.monotonic() - asked
        assert distributor.last_run is not None
        return weights, reached(distributor.last_run, seconds)

    heading("TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(train)")
    weights, first = timed_run()
    say("The same once more, without the ranks' lines.")
    _, second = timed_run(logs="off")

    heading("the same training in this process alone: train()")
    alone = digits.accuracy(digits.train())

    heading(f"accuracy on {digits.TEST_IMAGES} test images that the training has not seen")
    accuracy = digits.accuracy(weights)
    say(f"2 ranks on Spark   {accuracy:.4f}")
    say(f"1 process          {alone:.4f}")

    heading("where the time went, in seconds since .run() was called")
    print_table(first, second)
    return verdict(accuracy, alone)


def start_spark() -> SparkSession:
    """A cluster of two executors with a core each, on this host; says nothing but errors."""
    # Executors start Python by this name; it has to be set before Spark starts.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    log4j = (Path(__file__).parent / "log4j2.properties").as_uri()
    session: SparkSession = (
        SparkSession.builder.appName("Phalanx demo")
        .master("local-cluster[2,1,1024]")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j}")
        .config("spark.executor.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    return session


def reached(run: Run, seconds: float) -> dict[str, float]:
    """When `run`, which took its caller `seconds`, reached each step's end; where ranks differ the last one counts."""
    ends: dict[str, float] = {}
    for name, _, at in run.phases:
        ends[name] = max(at, ends.get(name, 0.0))
    # The run's own clock starts when the checks are done; the caller's a little earlier.
    before = max(0.0, seconds - ends["returned"])
    return {name: before + ends[phase] for name, phase, _ in STEPS}


def print_table(first: dict[str, float], second: dict[str, float]) -> None:
    """When two runs of a session reached each step's end, and how long each step took."""
    say(
        "The first run of a session starts Python and imports torch; later ones are forked from what it leaves."
    )
    say(f"{'':<25}{'first run':>14}{'second run':>16}")
    say(f"{'phase':<25}{'took':>6}{'at':>8}{'took':>8}{'at':>8}   meanwhile")
    before = 0.0, 0.0
    for name, _, meanwhile in STEPS:
        at = first[name], second[name]
        took = at[0] - before[0], at[1] - before[1]
        say(f"{name:<25}{took[0]:6.2f}{at[0]:8.2f}{took[1]:8.2f}{at[1]:8.2f}   {meanwhile}")
        before = at


def verdict(accuracy: float, alone: float) -> int:
    """0, or 1 and a sentence on stderr."""
    say("")
    if accuracy < LEAST_ACCURACY:
        complain(f"the demo failed: accuracy {accuracy:.4f} is below {LEAST_ACCURACY}")
        return 1
    if abs(accuracy - alone) > LARGEST_DIFFERENCE:
        complain(f"the demo failed: 2 ranks reach {accuracy:.4f}, one process {alone:.4f}; they should agree")
        return 1
    say(f"test accuracy: {accuracy:.4f} (at least {LEAST_ACCURACY} wanted). The demo passed.")
    return 0


def heading(text: str) -> None:
    say(f"\n== {text}")


def say(text: str) -> None:
    print(text, flush=True)


def complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
