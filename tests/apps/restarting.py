"""A driver whose two ranks don't end by themselves before their run was restarted.

restarting.py FOLDER local|python|jvm      trains once for each folder FOLDER/NUMBER-FACE, in which each rank leaves its
                                           process id: RANK, and RANK-again after the restart

DRIVER_CONF   the Spark settings as JSON

Prints RETURNED and what rank 0 returned, or FAILED and the error's kind and message.
"""

from __future__ import annotations

import os
import sys

from session import session, trainings


def train(folder: str) -> str:
    import time

    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    path = os.path.join(folder, os.environ["RANK"] + ("-again" if attempt != "0" else ""))
    with open(f"{path}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.new", path)
    if attempt == "0":
        time.sleep(600)
    return f"attempt {attempt}"


def main() -> None:
    folder, first_face = sys.argv[1:]
    from phalanx import TorchDistributor, TrainingError

    spark = session(first_face)
    for mine, face in trainings(spark, folder):
        local = face == "local"
        distributor = TorchDistributor(num_processes=2, local_mode=local, use_gpu=False, max_restarts=1)
        try:
            print("RETURNED", distributor.run(train, mine), flush=True)
        except TrainingError as error:
            print("FAILED", error.kind, error.message, flush=True)


if __name__ == "__main__":
    main()
