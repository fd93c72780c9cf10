"""spark-submit: which one it is, and how it ends.

LAUNCH-10 (ends-together): what asks this command to end (SIGTERM, SIGINT, SIGHUP) ends spark-submit, also where it
reached this process alone; the command waits for that end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def program() -> str:
    """Spark's `spark-submit`: that of SPARK_HOME, of the PATH, or of this Python's pyspark.

    Raises `ValueError` where there is none.
    """
    home = os.environ.get("SPARK_HOME")
    if home:
        return os.path.join(home, "bin", "spark-submit")
    found = shutil.which("spark-submit")
    if found:
        return found
    import importlib.util

    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise ValueError("there is no spark-submit: set SPARK_HOME, or install pyspark")
    return os.path.join(os.path.dirname(pyspark.origin), "bin", "spark-submit")


class SparkProcess:
    """The one spark-submit of this process, and the signals that ask for its end as long as the block lasts.

    Before it has started they raise `SystemExit`, so that what was prepared is cleared away.
    """

    def __init__(self) -> None:
        self._asked: int | None = None
        self._raises = False
        """Whether a signal raises: there is a folder to clear away, and nothing to tell."""
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SparkProcess:
        for number in _ENDING:
            # Ignored by who started this, as `nohup` does: it stays so, here and in spark-submit.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder for what is prepared, gone with the block; no signal is heeded while it is made or removed."""
        with tempfile.TemporaryDirectory(prefix="phalanx-submit-") as folder:
            try:
                self._raises = True
                if self._asked is not None:
                    raise SystemExit(128 + self._asked)
                yield Path(folder)
            finally:
                self._raises = False

    def run(self, command: Sequence[str]) -> int:
        """Runs the command and waits for its end; returns its exit code, as a shell has it.

        Raises `OSError` where it can't be started.
        """
        self._raises = False
        self._child = subprocess.Popen(command)
        if self._asked is not None:
            self._child.terminate()
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _take(self, number: int, _frame: FrameType | None) -> None:
        again, self._asked = self._asked is not None, number
        if self._child is not None:
            # Not SIGINT: Spark's scripts, which run first, may pass over it.
            self._child.terminate()
        elif self._raises and not again:
            raise SystemExit(128 + number)
