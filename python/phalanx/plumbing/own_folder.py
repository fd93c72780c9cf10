"""A private folder of this process, where there is no Spark application whose folder would do.

PLUMBING-4 (files-go): the folder of a process that is gone, even if it was killed, is removed by the next process of
the same user that has one, at the latest.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import time

_PREFIX = "phalanx-process-"
_LOCK = "in-use"
# A folder younger than this may not be locked yet.
_YOUNG_SECONDS = 60.0

_folder: tuple[int, str] | None = None


def own_folder() -> str:
    """The folder, made at the first call; gone when the process ends. A forked process has one of its own."""
    global _folder
    if _folder is None or _folder[0] != os.getpid():
        _sweep()
        path = tempfile.mkdtemp(prefix=_PREFIX)
        # Held until the process is gone, whatever ends it.
        lock = os.open(os.path.join(path, _LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        _folder = (os.getpid(), path)
        atexit.register(_remove, *_folder)
    return _folder[1]


def _remove(pid: int, path: str) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _sweep() -> None:
    """Removes what killed processes of this user left."""
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith(_PREFIX):
                continue
            with contextlib.suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                if stat.st_uid != os.getuid() or time.time() - stat.st_mtime < _YOUNG_SECONDS:
                    continue
                lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: in use
                    shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(lock)
