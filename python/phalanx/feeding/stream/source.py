"""A rank's end of a streamed data set: the record batches that its task sends, once.

FEED-55 (once): a rank's rows come once. Who asks again gets an error which says what to do.
FEED-56 (whole-or-error): rows end with the task's word that they have, or with an error.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from typing import Any

from . import wire


class StreamSource:
    """The rows that come from `address`."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self._address = address
        self._process = os.getpid()
        self._connection: socket.socket | None = None
        self._has_begun = False

    def begin(self) -> None:
        """Takes the rows for a pass.

        Raises `RuntimeError` where they have been taken, or belong to another process.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                f"the data set {self.name!r} is streamed, so its rows come to the rank itself and not to its worker "
                "processes; use num_workers=0, or the loader as it is"
            )
        if self._has_begun:
            raise RuntimeError(
                f"the data set {self.name!r} is streamed, so its rows come once, and this rank has already "
                "begun to read them; for more passes, pass the DataFrame without streamed(), or as "
                "phalanx.stored(df, uri)"
            )
        self._has_begun = True

    def batches(self, rank: int) -> Generator[Any, None, None]:
        """The record batches for this rank, as they come; after `begin`.

        Raises `RuntimeError` where they don't come to their end.
        """
        import pyarrow as pa

        rows = 0
        try:
            self._connection = wire.connect(self._address)
            self._connection.sendall(wire.frame(wire.HELLO, b"%d" % rank))
            while True:
                kind, body = wire.receive(self._connection)
                if kind == wire.BATCH:
                    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
                        batch = stream.read_next_batch()
                    rows += batch.num_rows
                    yield batch
                elif kind == wire.END and int(body) == rows:
                    return
                elif kind == wire.ERROR:
                    raise RuntimeError(body.decode())
                else:
                    raise wire.StreamBroken(f"its task said {bytes(kind)!r} after {rows} rows")
        except (wire.StreamBroken, OSError) as problem:
            raise RuntimeError(
                f"the rows of the data set {self.name!r} broke off: after {rows} rows the Spark task of this "
                f"rank sent no more ({problem}); its own error is in the executor's log"
            ) from problem
        finally:
            if self._connection is not None:
                self._connection.close()

    def close(self) -> None:
        """Takes no more; `batches`, in another thread, ends soon."""
        connection = self._connection
        if connection is not None and self._process == os.getpid():
            with contextlib.suppress(OSError):  # that thread closes it, which another must not do
                connection.shutdown(socket.SHUT_RDWR)
