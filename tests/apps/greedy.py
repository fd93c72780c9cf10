"""A driver whose two ranks don't end by themselves, and of which rank 1 takes memory once it may.

greedy.py FOLDER FACE      trains once for each folder FOLDER/NUMBER-FACE, in which each rank leaves its process id.
                           Where the file `greed` is there, rank 1 takes as many MiB as it says.

DRIVER_CONF                the Spark settings as JSON, where spark-submit doesn't give them

Prints a line when a training is over: FAILED and, as JSON, the error's kind, rank, host and text.
"""

from __future__ import annotations

import json
import os
import sys
import time

from session import session, trainings


def train(folder: str) -> None:
    import signal

    # YARN's SIGTERM gives an executor time to end its ranks, and to say so, before it is killed.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    path = os.path.join(folder, os.environ["RANK"])
    with open(f"{path}.new", "w") as file:
        file.write(f"{os.getpid()}")
    os.rename(f"{path}.new", path)
    while os.environ["RANK"] != "1" or not os.path.exists(f"{folder}/greed"):
        time.sleep(0.05)
    # Where the kernel chooses whom to kill, this is the process.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    with open(f"{folder}/greed") as file:
        hoard = b"x" * (int(file.read()) << 20)
    time.sleep(600)
    del hoard


def main() -> None:
    folder, first_face = sys.argv[1:]
    from phalanx import TorchDistributor, TrainingError

    spark = session(first_face)
    for mine, face in trainings(spark, folder):
        try:
            TorchDistributor(2, local_mode=face == "local", use_gpu=False).run(train, mine)
        except TrainingError as error:
            print("FAILED", json.dumps([error.kind, error.rank, error.host, str(error)]), flush=True)


if __name__ == "__main__":
    main()
