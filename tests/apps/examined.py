"""A driver that has its cluster examined; prints EXAMINED and, as JSON, the report, its text and its table.

examined.py PROCESSES TIMEOUT

DRIVER_CONF   the Spark settings as JSON
"""

from __future__ import annotations

import json
import sys

from session import session


def main() -> None:
    import phalanx

    spark = session("python")
    report = phalanx.doctor(spark, int(sys.argv[1]), use_gpu=False, timeout=float(sys.argv[2]))
    told = {"report": json.loads(report.to_json()), "text": str(report), "html": report._repr_html_()}
    print("EXAMINED", json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
