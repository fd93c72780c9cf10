"""What `spark-submit` runs for `phalanx submit`: the application's driver.

    application.py NAME RANKS cpu|gpu MODULE [ARGS...]

Exit code 0 means that every rank ended well, 1 that the training failed, and 2 that the call was refused before
anything started; the cause is on stderr.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Runs the training; returns the exit code."""
    # The folder of this file, which Python puts first, has modules that the job may have under the same names.
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from phalanx import TorchDistributor, TrainingError
    from phalanx.request.train_object import Module

    name, ranks, gpu, module, *args = sys.argv[1:]
    # Spark ships a wheel as it ships a zip, but pyspark wouldn't put it on Python's path.
    SparkContext.PACKAGE_EXTENSIONS = (*SparkContext.PACKAGE_EXTENSIONS, ".whl")
    spark = SparkSession.builder.getOrCreate()
    distributor = None
    try:
        distributor = TorchDistributor(int(ranks), local_mode=False, use_gpu=gpu == "gpu")
        distributor.run(Module(module, run_name=name), *args)
    except TrainingError as failure:
        print(f"phalanx submit: {failure}", file=sys.stderr)
        return 1
    except (OSError, RuntimeError, TypeError, ValueError) as refusal:
        if distributor is not None and distributor.last_run is not None:
            raise
        print(f"phalanx submit: {refusal}", file=sys.stderr)
        return 2
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
