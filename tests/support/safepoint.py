"""A JVM whose Java threads stand still, as in a full collection that takes long, while its native threads run.

The JVM dumps its heap, for which it stops every Java thread, into a pipe that nobody reads.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from support.programs import eventually


@contextlib.contextmanager
def standing_still(pid: int, folder: Path) -> Iterator[None]:
    """While this is open, no Java thread of the process runs; the pipe is in `folder`."""
    pipe = folder / f"heap-{pid}"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    dump = subprocess.Popen(
        ["jcmd", str(pid), "GC.heap_dump", "-overwrite", "-all", str(pipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(60, dump.kill)
    watchdog.start()
    try:
        # Its first bytes are written when the Java threads stand still.
        eventually("the JVM stands still", 20, lambda: select.select([reading], [], [], 0)[0])
        yield
        assert dump.poll() is None, f"the JVM went on: {dump.communicate()[0]}"
    finally:
        while dump.poll() is None:
            if select.select([reading], [], [], 0.02)[0]:
                os.read(reading, 1 << 20)
        watchdog.cancel()
        dump.communicate()
        os.close(reading)
        pipe.unlink()
