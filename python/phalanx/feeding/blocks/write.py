"""A partition as blocks, written in a Python worker of Spark. A block is one Arrow record batch as an IPC stream.

The blocks of a partition stand in one file, one behind the other, in a folder of the run below Spark's local directory,
or in a folder that is kept, which may be a URI's.
This module travels to the workers by value, so that executors need no Phalanx: it uses nothing else of Phalanx's.

FEED-59 (as-they-are): a block has the partition's rows in their order, with the types and bits that Spark gave.
FEED-60 (bounded): a block has at most `BLOCK_ROWS` rows, and about `BLOCK_BYTES` bytes unless one row has more.
FEED-61 (private): only the user can read the folder, unless it is one that is kept. A task that fails leaves no file in
it.
FEED-66 (summed): of each block there is told what its rows' hashes come to (`identity.py`). The hashes are the
last column of what comes, and no block has them.
FEED-67 (what-is-gone): a job that is run again writes the partitions that are gone, and no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BLOCK_BYTES = 16 << 20
BLOCK_ROWS = 1 << 20

# Each block begins at such a multiple, so that the numbers in it are aligned in memory.
ALIGNMENT = 64

# Of the polynomial of a block's hashes, `identity.py`: any number does for the first that looks like chance.
BASE = 0x16A5F1D3C7B9E24D
PRIME = (1 << 61) - 1
# So many hashes at a time stay in the processor's cache.
_AT_ONCE = 1 << 16

SURVIVING = "phalanx.data.surviving"
"""The property of a Spark job that has the partitions which are not to be written, as numbers with commas between."""

SCHEMA = ", ".join(
    [
        *("partition int", "number int", "host string", "path string"),
        *("start long", "bytes long", "rows long", "checksum long", "content long", "sequence long"),
        "facts string",
    ]
)
"""What a task answers, as Spark says it: a row for each block."""


def writer(
    names: list[str], folder: str, block_bytes: int, block_rows: int, *, kept: bool = False
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What `DataFrame.mapInArrow` is to run in each task: it writes the partition into `folder`, below one of Spark's
    local directories, and answers with its blocks. A folder that is `kept` is a path or a URI of its own. The columns
    get these names; behind them is one more, which has the rows' hashes."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import socket

        import pyarrow as pa
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        partition = context.partitionId()
        if str(partition) in (context.getLocalProperty(SURVIVING) or "").split(","):
            for _ in batches:  # Spark takes a worker whose input was left unread for broken
                pass
            return
        # Partitions take turns: there may be a disk behind each directory.
        directories = [""] if kept else os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        directory = directories[partition % len(directories)] or tempfile.gettempdir()
        path = os.path.join(
            folder if kept else os.path.join(directory, folder), f"{partition}-{context.taskAttemptId()}"
        )
        hashes = _Hashes(names)
        blocks = write_partition(hashes.apart(batches), path, block_bytes, block_rows, private=not kept)
        for block in blocks:
            block["content"], block["sequence"] = hashes.summed(block["rows"])
        if blocks:
            own = {"partition": partition, "host": socket.gethostname(), "path": path}
            yield pa.RecordBatch.from_pylist(
                [{**own, "number": number, **block} for number, block in enumerate(blocks)],
                schema=_answer(pa),
            )

    return write


class _Hashes:
    """The hashes of rows that are taken off batches, until these are blocks."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._waiting: list[Any] = []

    def apart(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches without their last column, whose other columns get their names."""
        import pyarrow as pa

        for batch in batches:
            self._waiting.append(batch.columns[-1].to_numpy())
            fields = [field.with_name(name) for field, name in zip(batch.schema, self._names, strict=False)]
            yield pa.RecordBatch.from_arrays(
                batch.columns[:-1], schema=pa.schema(fields, batch.schema.metadata)
            )

    def summed(self, rows: int) -> tuple[int, int]:
        """The sum of the next rows' hashes, as a signed number of 64 bits, and their polynomial."""
        import numpy as np

        waiting = np.concatenate(self._waiting)
        hashes, self._waiting = waiting[:rows], [waiting[rows:]]
        return int(hashes.sum(dtype=np.int64)), polynomial(hashes)


def polynomial(hashes: Any) -> int:
    """`h1 B^(n-1) + ... + hn` modulo `PRIME`, of an array of signed numbers of 64 bits."""
    found = 0
    for first in range(0, len(hashes), _AT_ONCE):
        some = hashes[first : first + _AT_ONCE]
        found = (found * pow(BASE, len(some), PRIME) + _polynomial(some)) % PRIME
    return found


def _polynomial(hashes: Any) -> int:
    import numpy as np

    terms, base = _reduced(hashes.view(np.uint64)), BASE
    while len(terms) > 1:
        # Two neighbours become one term, and so there are half as many, each with twice the power of the base.
        if len(terms) % 2:
            terms = np.concatenate([np.zeros(1, np.uint64), terms])
        terms = _reduced(_times(terms[0::2], base) + terms[1::2])
        base = base * base % PRIME
    return int(terms[0])


def _times(numbers: Any, by: int) -> Any:
    """Products modulo `PRIME` of numbers below it. 64 bits have room for the products of halves of 31 bits."""
    import numpy as np

    half, low = np.uint64(31), np.uint64((1 << 31) - 1)
    upper, lower = numbers >> half, numbers & low
    by_upper, by_lower = np.uint64(by >> 31), np.uint64(by & ((1 << 31) - 1))
    middle = upper * by_lower + lower * by_upper
    # 2^62 is 2 modulo the prime, and 2^61 is 1.
    middle = (middle >> np.uint64(30)) + ((middle & np.uint64((1 << 30) - 1)) << half)
    return _reduced(_reduced(np.uint64(2) * upper * by_upper + middle) + _reduced(lower * by_lower))


def _reduced(numbers: Any) -> Any:
    import numpy as np

    prime = np.uint64(PRIME)
    numbers = (numbers & prime) + (numbers >> np.uint64(61))
    return np.where(numbers >= prime, numbers - prime, numbers)


def remover(paths: list[str], own: str | None) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What `DataFrame.mapInArrow` is to run in a task on the host that has these files and folders: it removes them,
    and the folder that is called `own` below each of Spark's local directories there."""

    def remove(batches: Iterator[Any]) -> Iterator[Any]:
        import shutil

        for _ in batches:  # Spark takes a worker whose input was left unread for broken
            pass
        directories = filter(None, os.environ.get("SPARK_LOCAL_DIRS", "").split(","))
        owned = [os.path.join(directory, own) for directory in directories] if own else []
        for path in [*paths, *owned]:
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        yield from ()

    return remove


def looker(files: list[tuple[str, str]]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What `DataFrame.mapInArrow` is to run in a task: the numbers of those of these files, each on a host, that are on
    its own, and are there."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import socket

        import pyarrow as pa

        for _ in batches:
            pass
        here = socket.gethostname()
        found = [number for number, (host, path) in enumerate(files) if host == here and os.path.exists(path)]
        yield pa.RecordBatch.from_pydict({"file": pa.array(found, pa.int32())})

    return look


def write_partition(
    batches: Iterable[Any], path: str, block_bytes: int, block_rows: int, *, private: bool = True
) -> list[dict[str, Any]]:
    """Writes the rows of `batches` to a file at `path`, and says of each block where it is there, and what it has.

    A `private` file's folder is the user's alone. Raises `OSError` where it can't be written.
    """
    blocks: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        file = None
        start = 0
        for batch in regrouped(batches, block_bytes, block_rows):
            if file is None:
                file = stack.enter_context(_new_file(path, private=private))
            data = as_stream(batch)
            size = len(data)
            # fsspec's files take bytes, and not all of them a buffer.
            file.write(data if private else memoryview(data).tobytes())
            file.write(bytes(-size % ALIGNMENT))
            blocks.append(
                {
                    "start": start,
                    "bytes": size,
                    "rows": batch.num_rows,
                    "checksum": zlib.crc32(data),
                    "facts": json.dumps(facts_of(batch)),
                }
            )
            start += size + -size % ALIGNMENT
    return blocks


def as_stream(batch: Any) -> Any:
    """A record batch as an IPC stream, in a buffer."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def regrouped(batches: Iterable[Any], block_bytes: int, block_rows: int) -> Iterator[Any]:
    """The same rows in record batches of the size of a block; only the last may be smaller."""
    import pyarrow as pa

    waiting: list[Any] = []
    rows = size = 0

    def whole() -> Any:
        table = pa.Table.from_batches(waiting).combine_chunks()
        return table.to_batches()[0]

    for batch in batches:
        at = 0
        while at < batch.num_rows:
            rest = batch.slice(at)
            a_row = max(1, rest.nbytes // rest.num_rows)
            piece = rest.slice(0, max(1, min(block_rows - rows, (block_bytes - size) // a_row)))
            waiting.append(piece)
            at += piece.num_rows
            rows += piece.num_rows
            size += piece.nbytes
            if rows >= block_rows or size + a_row > block_bytes:
                yield whole()
                waiting, rows, size = [], 0, 0
    if waiting:
        yield whole()


def facts_of(batch: Any) -> dict[str, Any]:
    """What a loader has to know of a block's columns before it reads them.

    nulls     how many nulls a column has; those of an array's elements have the column's name with `[]`
    lengths   of a column of arrays the shortest and the longest, for each level of nesting
    """
    nulls: dict[str, int] = {}
    lengths: dict[str, list[list[int]]] = {}
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        levels = []
        at = name
        if array.null_count:
            nulls[at] = array.null_count
        while _is_list(array.type):
            levels.append(_lengths(array))
            array = array.flatten()
            at = f"{name}[]"
            if array.null_count:
                nulls[at] = nulls.get(at, 0) + array.null_count
        if levels:
            lengths[name] = levels
    return {"nulls": nulls, "lengths": lengths}


def _lengths(array: Any) -> list[int]:
    import pyarrow.compute as pc

    found = pc.min_max(pc.list_value_length(array))
    # Where there is no array at all, any length would do.
    return [-1, -1] if found["min"].as_py() is None else [found["min"].as_py(), found["max"].as_py()]


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


@contextlib.contextmanager
def _new_file(path: str, *, private: bool) -> Iterator[Any]:
    if "://" in path:
        with _new_object(path) as file:
            yield file
        return
    os.makedirs(os.path.dirname(path), mode=0o700 if private else 0o777, exist_ok=True)
    try:
        with open(path, "xb") as file:
            yield file
            if not private:  # what is kept outlasts a loss of power, before an index names it
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


@contextlib.contextmanager
def _new_object(uri: str) -> Iterator[Any]:
    from fsspec.core import url_to_fs

    files, path = url_to_fs(uri)
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    try:
        with files.open(path, "wb") as file:
            yield file
    except BaseException:
        with contextlib.suppress(Exception):
            files.rm_file(path)
        raise


def _answer(pa: Any) -> Any:
    kinds = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
    return pa.schema([(name, kinds[kind]) for name, kind in (field.split() for field in SCHEMA.split(", "))])
