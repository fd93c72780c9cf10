"""A driver whose two ranks don't end by themselves, and neither do their children, which ignore SIGTERM.

endless.py FOLDER local|python|jvm      each rank leaves its process id and its child's in FOLDER

DRIVER_CONF   the Spark settings as JSON, where they don't come from spark-submit

Prints a line when the training is over: FAILED, the time, and the error's kind and message; or INTERRUPTED.
"""

from __future__ import annotations

import os
import sys
import time

from session import session


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
    folder, face = sys.argv[1:]
    from phalanx import TorchDistributor, TrainingError

    spark = session(face)
    try:
        TorchDistributor(num_processes=2, local_mode=face == "local", use_gpu=False).run(train, folder)
    except TrainingError as error:
        print("FAILED", time.time(), error.kind, error.message, flush=True)
        spark.stop()
    except KeyboardInterrupt:
        print("INTERRUPTED", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
