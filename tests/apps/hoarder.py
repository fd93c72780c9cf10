"""A driver in a memory cgroup of its own, of whose two ranks one takes more memory than the cgroup has.

hoarder.py FACE...

DRIVER_CONF   the Spark settings as JSON

Prints one line of JSON: for each face the error's kind, rank and text, and what a run after it returned.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from session import session


def hoards() -> None:
    import os
    import time

    if os.environ["RANK"] == "1":
        # Of the processes of the cgroup this is the one to be killed.
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        hoard = []
        while True:
            hoard.append(b"x" * (16 << 20))
    time.sleep(600)


def faulty(face: str) -> dict[str, Any]:
    from phalanx import TorchDistributor, TrainingError

    session(face)
    distributor = TorchDistributor(num_processes=2, local_mode=face == "local", use_gpu=False)
    try:
        distributor.run(hoards)
    except TrainingError as error:
        told = {"kind": error.kind, "rank": error.rank, "text": str(error)}
        return {**told, "after": distributor.run(os.getcwd)}
    return {"kind": "none"}


def main() -> None:
    spark = session("local")
    print("HOARDER", json.dumps({face: faulty(face) for face in sys.argv[1:]}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
