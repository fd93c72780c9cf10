"""Files that are whole or absent.

PLUMBING-6 (no-half-files): a file that was not written to its end never stands at its final name.
PLUMBING-7 (nothing-left): what could not be written leaves nothing behind. It may have filled the disk, and the failure
is soon to be written to that disk.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


@contextlib.contextmanager
def whole_or_absent(path: str, *, part: str | None = None, durable: bool = False) -> Iterator[BinaryIO]:
    """A new file to write, that is at `path` once the block has ended well, in the place of what was there, and else
    is gone.

    Until then it is called `part`. A `durable` one outlasts a loss of power: data, then name, then folder are written
    through.

    Raises `OSError`, which names `path`, where it can't be written.
    """
    part = part or f"{path}.part-{os.getpid()}"
    try:
        with open(part, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if isinstance(problem, OSError):
            raise OSError(problem.errno, problem.strerror, path) from problem
        raise
    if durable:
        write_through(os.path.dirname(path))


def write_through(folder: str) -> None:
    """Has the names in a folder outlast a loss of power; some network file systems know no such thing."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)
