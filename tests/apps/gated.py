"""A driver whose two ranks write half of their lines, wait until they may go on, write the others, and end well.

gated.py FOLDER local|python|jvm      each rank leaves its process id in FOLDER, and goes on when FOLDER/go is there

DRIVER_CONF   the Spark settings as JSON

Prints the ranks' output; then RETURNED and the results, or FAILED and the error's kind and message.
"""

from __future__ import annotations

import os
import sys

from session import session

LINES = 1000


def train(folder: str) -> str:
    import time

    rank = os.environ["RANK"]
    for i in range(LINES // 2):
        print("line", i)
    path = f"{folder}/{rank}"
    with open(f"{path}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.new", path)
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    for i in range(LINES // 2, LINES):
        print("line", i)
    return rank * 100_000


def main() -> None:
    folder, face = sys.argv[1:]
    from phalanx import TorchDistributor, TrainingError

    spark = session(face)
    distributor = TorchDistributor(num_processes=2, local_mode=face == "local", use_gpu=False)
    try:
        distributor.run(train, folder)
        print("RETURNED", [len(result) for result in distributor.last_run.results()], flush=True)
    except TrainingError as error:
        print("FAILED", error.kind, error.message, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
