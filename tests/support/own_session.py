"""A Spark session in a process of its own, for what a test does to a session that no other test may see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

from support.places import PYTHON, ROOT


def in_session(
    master: str, text: str, *, conf: dict[str, str] | None = None, connect: bool = False, timeout: float = 100
) -> Any:
    """What `text` leaves in `answer`, run with a session `spark` of its own in a process of its own; with `connect`
    by a client of a Spark Connect server that has this master."""
    program = f"""
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.{"remote" if connect else "master"}({master!r}).config("spark.ui.enabled", "false")
for key, value in {conf or {}!r}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
try:
{textwrap.indent(textwrap.dedent(text), "    ")}
finally:
    spark.stop()
print("ANSWER", json.dumps(answer))
"""
    # Else a server's port is always the same, and of two at the same time one fails.
    testing = {"SPARK_TESTING": "1"} if connect else {}
    path = os.pathsep.join([str(ROOT / "tests"), str(PYTHON)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, **testing},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("ANSWER ")[2])
