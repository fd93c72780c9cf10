#!/usr/bin/env python3
"""Makes the archive of Spark's classes with which the JVMs of the tests start quickly (tests/support/jvm.py).

    scripts/archive_classes.py ARCHIVE

One driver runs what nearly every test does: a cluster of its own, a local session, a stage of Python workers. When it
ends its JVM writes down which classes it had loaded, as it has them in memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "python")]


def work(master: str, tasks: int, conf: dict[str, str]) -> None:
    """Two stages of as many tasks as there are slots."""
    from pyspark.sql import SparkSession

    settings = {"spark.master": master, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", **conf}
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.range(0, tasks, 1, tasks).mapInArrow(lambda batches: batches, "id long", barrier=True).collect()
    spark.sparkContext.parallelize(range(tasks), tasks).barrier().mapPartitions(
        lambda numbers: numbers
    ).collect()
    spark.stop()


def main() -> None:
    from support import jvm

    archive = Path(sys.argv[1]).resolve()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(jvm.environment(folder), PYSPARK_PYTHON=sys.executable)
        options = " ".join([*jvm.QUICK, "-Xlog:disable"])
        os.environ["JDK_JAVA_OPTIONS"] = options
        # Only what spark-submit starts writes it.
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={archive}.new"
        work("local-cluster[1,1,512]", 1, {"spark.executor.memory": "512m"})
        work("local[2]", 2, {})

        from pyspark import SparkContext

        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(300)
    Path(f"{archive}.new").replace(archive)


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.SubprocessError) as problem:
        # Tests without it are slow, and right.
        print(f"the JVMs of the tests have no archive of classes: {problem}", file=sys.stderr)
