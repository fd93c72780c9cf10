"""A rank's result: the file it is written to, and what stands in where there is none to give.

Its format is one pickle; for a caller in the JVM a line, `bytes`, `json` or `unavailable`, and then the bytes, the JSON
text or the reason.

RES-1: the file `result` is whole or absent. RES-2: rank 0's value arrives or the rank fails with its type's
name; a value of another rank that can't arrive is replaced by the reason, an `UnavailableResult`, and hurts nobody.
"""

from __future__ import annotations

import contextlib
import os
import pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


class UnavailableResult:
    """Stands for the result of a rank other than 0 that could not be brought back; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"UnavailableResult({self.reason!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnavailableResult) and other.reason == self.reason

    def __hash__(self) -> int:
        return hash(self.reason)


class UnwritableResult(TypeError):
    """Rank 0's value can't be given to a caller in the JVM."""


class TooLarge(Exception):
    """More bytes than may be written."""


class LimitedFile:
    """A file that takes `limit` bytes and then raises `TooLarge`."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = limit

    def write(self, data: bytes | memoryview) -> int:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        self._left -= size
        if self._left < 0:
            raise TooLarge
        return self._file.write(data)


def write_result(value: object, directory: str, *, rank: int, max_bytes: int, what: str) -> None:
    """Pickles `value` into `directory`/result.

    `what` names the value in an error, e.g. `the value that train returned`. `max_bytes` limits ranks other
    than 0.

    Raises `UnpicklableError` for rank 0's value that doesn't pickle, `OSError` where the file can't be
    written.
    """
    with _whole_or_absent(os.path.join(directory, "result")) as file:
        try:
            _dump(value, file if rank == 0 else LimitedFile(file, max_bytes))
        except OSError:
            raise
        except Exception as problem:
            from .unpicklable import UnpicklableError, a_kind

            if isinstance(problem, TooLarge):
                reason = _too_large(what, max_bytes)
            else:
                reason = f"{what} ({a_kind(value)}) doesn't pickle: {problem}"
            if rank == 0:
                raise UnpicklableError(reason) from problem
            file.seek(0)
            file.truncate()
            _dump(UnavailableResult(f"rank {rank}: {reason}"), file)


def write_json_result(value: object, directory: str, *, rank: int, max_bytes: int, what: str) -> None:
    """Writes `value` to `directory`/result as bytes, if it is such, else as JSON; None leaves no file.

    Parameters are those of `write_result`.

    Raises `UnwritableResult` for rank 0's value that is neither, `OSError` where the file can't be written.
    """
    if value is None:
        return
    kind, body, reason = b"bytes\n", b"", ""
    if isinstance(value, (bytes, bytearray, memoryview)):
        body = bytes(value)
    else:
        import json

        try:
            kind, body = b"json\n", json.dumps(value).encode()
        except Exception as problem:
            from .unpicklable import a_kind

            reason = f"{what} ({a_kind(value)}) is neither bytes nor JSON, which is what a caller in the JVM can take"
            reason = f"{reason}: {problem}"
            if rank == 0:
                raise UnwritableResult(reason) from problem
    if rank != 0 and len(body) > max_bytes:
        reason = _too_large(what, max_bytes)
    if reason:
        kind, body = b"unavailable\n", f"rank {rank}: {reason}".encode()
    with _whole_or_absent(os.path.join(directory, "result")) as file:
        file.write(kind)
        file.write(body)


@contextlib.contextmanager
def _whole_or_absent(path: str) -> Iterator[BinaryIO]:
    """A file to write that is at `path` once the block has ended well, and else is gone: what failed may have filled
    the disk, on which the record of the failure is to be written next. An `OSError` names it."""
    try:
        with open(path + ".tmp", "wb") as file:
            yield file
        os.replace(path + ".tmp", path)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            os.unlink(path + ".tmp")
        if isinstance(problem, OSError):
            raise OSError(problem.errno, problem.strerror, path) from problem
        raise


def _too_large(what: str, max_bytes: int) -> str:
    return f"{what} is larger than {max_bytes} bytes (spark.phalanx.results.maxBytes)"


def _dump(value: object, file: BinaryIO | LimitedFile) -> None:
    if value is None or type(value) in (bool, int, float, str):
        # a file's None isn't worth the 60 ms that importing cloudpickle takes
        file.write(pickle.dumps(value))
    else:
        import cloudpickle

        cloudpickle.dump(value, file)
