"""A driver whose two ranks write half of their lines, wait until they may go on, write the others, and end well.

gated.py FOLDER local|python|jvm      trains once for each folder FOLDER/NUMBER-FACE, in which each rank leaves its
                                      process id; it goes on when there is a file `go`

DRIVER_CONF   the Spark settings as JSON

Prints the ranks' output; then RETURNED and the results, or FAILED, the time, and the error's kind and message.
"""

from __future__ import annotations

import os
import sys
import time

from session import session, trainings

LINES = 1000


def train(folder: str, said: str = "line") -> str:
    import time

    rank = os.environ["RANK"]
    for i in range(LINES // 2):
        print(said, i)
    path = f"{folder}/{rank}"
    with open(f"{path}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.new", path)
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    for i in range(LINES // 2, LINES):
        print(said, i)
    return rank * 100_000


def main() -> None:
    folder, first_face = sys.argv[1:]
    from phalanx import TorchDistributor, TrainingError

    spark = session(first_face)
    for mine, face in trainings(spark, folder):
        distributor = TorchDistributor(num_processes=2, local_mode=face == "local", use_gpu=False)
        try:
            distributor.run(train, mine)
            print("RETURNED", [len(result) for result in distributor.last_run.results()], flush=True)
        except TrainingError as error:
            print("FAILED", time.time(), error.kind, error.message, flush=True)


if __name__ == "__main__":
    main()
