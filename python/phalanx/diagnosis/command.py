"""The command `phalanx doctor`: what `phalanx.doctor` finds, as text or JSON, from a shell."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import Any


def main(argv: Sequence[str]) -> int:
    """Prints the report; returns 0 if no finding is an error, else 1. A session that it makes it also ends."""
    given = _parser().parse_args(argv)
    from .doctor import doctor

    spark = _session(given)
    try:
        report = doctor(spark, given.num_processes, given.use_gpu, timeout=given.timeout)
    finally:
        spark.stop()
    print(report.to_json() if given.json else report, flush=True)
    return 0 if report.ok else 1


def _session(given: argparse.Namespace) -> Any:
    from pyspark.sql import SparkSession

    from ..spark.configure import configure

    builder: Any = SparkSession.builder.appName("phalanx doctor")
    for setting in given.conf:
        key, equals, value = setting.partition("=")
        if not equals:
            raise SystemExit(f"phalanx doctor: --conf {setting} has no value; it takes key=value")
        builder = builder.config(key, value)
    if given.master is not None and given.master.startswith("sc://"):
        return builder.remote(given.master).getOrCreate()
    if given.master is not None:
        builder = builder.master(given.master)
    with contextlib.suppress(FileNotFoundError):  # built without the jar: a run takes the python stage
        builder = configure(builder)
    return builder.getOrCreate()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="phalanx doctor",
        description="Looks at a Spark cluster as a training would, and says what would go wrong, host by host. "
        "The exit code is 1 where something is an error.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--num-processes", type=int, default=8, metavar="N", help="how many ranks the training has (8)"
    )
    parser.add_argument(
        "--use-gpu",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether each has a GPU of its own (it has)",
    )
    parser.add_argument("--no-gpu", dest="use_gpu", action="store_false", help="as --no-use-gpu")
    parser.add_argument("--master", help="as spark-submit's --master, or sc://host:port for Spark Connect")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; may be repeated"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds it may take in all (60)"
    )
    parser.add_argument(
        "--json", action="store_true", help="prints JSON, with everything that the hosts reported"
    )
    return parser
