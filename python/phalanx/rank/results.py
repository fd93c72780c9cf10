"""A rank's result: the file that it is written to.

For a caller in Python the file is one pickle, and after it a line of JSON: `versions`, what wrote it, and `shards`, how
many DTensors in it are this rank's shard alone (`shards.py`). For a caller in the JVM it is a line, `bytes`, `json` or
`unavailable`, and then the bytes, the JSON text or the reason.

RANK-26 (no-half-results): the file `result` is whole or absent.
RANK-27 (arrives-or-says): rank 0's value arrives, or the rank fails and the error names the value's type. If the value
of another rank can't arrive, an `UnavailableResult` with the reason takes its place, and nothing fails.
"""

from __future__ import annotations

import json
import os
import pickle
import sys

from ..plumbing.whole_file import whole_or_absent
from . import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


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
    with whole_or_absent(os.path.join(directory, contract.FILE_RESULT)) as file:
        try:
            shards = _dump(value, file if rank == 0 else LimitedFile(file, max_bytes))
        except OSError:
            raise
        except Exception as problem:
            from ..errors import UnpicklableError
            from ..plumbing.describe import describe_type
            from ..results import UnavailableResult

            if isinstance(problem, TooLarge):
                reason = _too_large(what, max_bytes)
            else:
                reason = f"{what} ({describe_type(value)}) doesn't pickle: {problem}"
            if rank == 0:
                raise UnpicklableError(reason) from problem
            file.seek(0)
            file.truncate()
            shards = _dump(UnavailableResult(f"rank {rank}: {reason}"), file)
        # Behind the pickle, where who loads it never looks.
        file.write(b"\n" + json.dumps({"versions": versions(), "shards": shards}).encode())


def versions() -> dict[str, str]:
    """The versions of what a pickle depends on most, as far as it is loaded in this process."""
    found = {"Python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("cloudpickle", "torch", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def write_json_result(value: object, directory: str, *, rank: int, max_bytes: int, what: str) -> None:
    """Writes `value` to `directory`/result as bytes, if it is such, else as JSON; None leaves no file.

    Parameters are those of `write_result`.

    Raises `UnwritableResult` for rank 0's value that is neither, `OSError` where the file can't be written.
    """
    if value is None:
        return
    kind, body, reason = contract.RESULT_BYTES, b"", ""
    if isinstance(value, (bytes, bytearray, memoryview)):
        body = bytes(value)
    else:
        try:
            kind, body = contract.RESULT_JSON, json.dumps(value).encode()
        except Exception as problem:
            from ..plumbing.describe import describe_type

            subject = f"{what} ({describe_type(value)})"
            reason = (
                f"{subject} is neither bytes nor JSON, which is what a caller in the JVM can take: {problem}"
            )
            if rank == 0:
                raise UnwritableResult(reason) from problem
    if rank != 0 and len(body) > max_bytes:
        reason = _too_large(what, max_bytes)
    if reason:
        kind, body = contract.RESULT_UNAVAILABLE, f"rank {rank}: {reason}".encode()
    with whole_or_absent(os.path.join(directory, contract.FILE_RESULT)) as file:
        file.write(kind.encode() + b"\n")
        file.write(body)


def _too_large(what: str, max_bytes: int) -> str:
    return f"{what} is larger than {max_bytes} bytes (spark.phalanx.results.maxBytes)"


def _dump(value: object, file: BinaryIO | LimitedFile) -> int:
    """Pickles a value; how many DTensors in it are a shard alone."""
    if value is None or type(value) in (bool, int, float, str):
        # a file's None isn't worth the 60 ms that importing cloudpickle takes
        file.write(pickle.dumps(value))
        return 0
    from .shards import ShardCountingPickler

    pickler = ShardCountingPickler(file)
    pickler.dump(value)
    return pickler.shards
