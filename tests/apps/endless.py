"""A driver whose two ranks don't end by themselves, and neither do their children, which ignore SIGTERM.

endless.py FOLDER local|python|jvm      trains once for each folder FOLDER/NUMBER-FACE, in which each rank leaves its
                                        process id and its child's

DRIVER_CONF   the Spark settings as JSON, where they don't come from spark-submit

Prints a line when a training is over: FAILED, the time, and the error's kind and message; or INTERRUPTED, and ends.
"""

from __future__ import annotations

import os
import sys
import time

from session import session, trainings


def train(folder: str) -> None:
    import signal
    import subprocess
    import time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
    path = os.path.join(folder, os.environ["RANK"])
    with open(f"{path}.new", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename(f"{path}.new", path)
    time.sleep(600)


def main() -> None:
    folder, first_face = sys.argv[1:]
    from phalanx import TorchDistributor, TrainingError

    spark = session(first_face)
    try:
        for mine, face in trainings(spark, folder):
            # Warm ranks: what is left is what their pools leave, too.
            distributor = TorchDistributor(2, local_mode=face == "local", use_gpu=False, warm=True)
            try:
                distributor.run(train, mine)
            except TrainingError as error:
                print("FAILED", time.time(), error.kind, error.message, flush=True)
    except KeyboardInterrupt:
        print("INTERRUPTED", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
