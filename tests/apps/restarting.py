"""A driver whose two ranks don't end by themselves before their run was restarted.

restarting.py FOLDER local|python|jvm      each rank leaves its process id in FOLDER, once per attempt

DRIVER_CONF   the Spark settings as JSON

Prints RETURNED and what rank 0 returned, or FAILED and the error's kind and message.
"""

from __future__ import annotations

import os
import sys

from session import session


def train(folder: str) -> str:
    import time

    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    path = os.path.join(folder, f"{os.environ['RANK']}-{attempt}")
    with open(f"{path}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.new", path)
    if attempt == "0":
        time.sleep(600)
    return f"attempt {attempt}"


def main() -> None:
    folder, face = sys.argv[1:]
    from phalanx import TorchDistributor, TrainingError

    spark = session(face)
    distributor = TorchDistributor(num_processes=2, local_mode=face == "local", use_gpu=False, max_restarts=1)
    try:
        print("RETURNED", distributor.run(train, folder), flush=True)
    except TrainingError as error:
        print("FAILED", error.kind, error.message, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
