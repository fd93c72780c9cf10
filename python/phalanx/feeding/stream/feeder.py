"""A task's end of a streamed data set: a thread hands the task's input to its ranks, batch by batch.

FEED-46 (shares): each record batch is cut among the task's ranks, so that no two of them have got numbers of rows that
differ by more than one.
FEED-47 (no-faster): one batch at a time is here; the next is asked of Spark when the ranks' sockets have taken this
one.
FEED-48 (not-alone): when `close` returns nobody reads the input any more: Spark's worker goes on to use its socket.
FEED-49 (left-is-fine): a rank that takes no more, or never asked, is no error. When no rank takes any more, nothing
more is asked of Spark.
FEED-50 (sparks-error): where Spark can't compute the input it fails the task, with the cause, and ends its process. One
that waits for the process instead, as Spark 3.5 does, finds it ended, and says the cause then. Ranks take neither for
an end of their rows.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..blocks.write import as_stream
from . import wire

# How long Spark may take to end a task whose input it can't compute.
SPARK_ENDS_S = 3.0
# What a rank's connection may say of itself.
_HELLO_BYTES = 256


class Feeder:
    """Hands `batches` to as many `ranks`, from its making on until `close`."""

    def __init__(self, batches: Iterable[Any], ranks: int, name: str) -> None:
        self.address = wire.new_address()
        self.rows = 0
        """How many rows were read."""
        self._batches = batches
        self._name = name
        self._listening = wire.listen(self.address)
        self._takers: list[_Taker | None] = [None] * ranks
        """By the rank's number in the task; None for one that has not asked yet."""
        self._new: list[socket.socket] = []
        self._given = [0] * ranks
        self._stopping = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._main, name="phalanx-feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, after the batch that it is reading, and waits for it; its connections end, too."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join()
        for end in (self._wake, self._woken):
            end.close()

    def _main(self) -> None:
        try:
            self._feed()
        finally:
            self._listening.close()
            for connection in self._new:
                connection.close()
            for taker in self._takers:
                if taker is not None:
                    taker.leave()

    def _feed(self) -> None:
        batches = iter(self._batches)
        while not self._stopping.is_set() and not self._all_left():
            try:
                batch = next(batches, None)
            except Exception as problem:
                if not self._stopping.wait(SPARK_ENDS_S):
                    told = (
                        f"phalanx: Spark could not compute the data set {self._name!r} to its end ({problem})"
                    )
                    print(told, file=sys.stderr, flush=True)
                    os._exit(1)
                return
            if batch is None:
                ends = [wire.frame(wire.END, b"%d" % rows) for rows in self._given]
                self._send(ends)
                return
            self.rows += batch.num_rows
            self._send(list(self._shares(batch)))

    def _shares(self, batch: Any) -> Iterator[bytes | None]:
        """FEED-46: the frames of each rank's rows."""
        at, ranks = 0, len(self._takers)
        before = sum(self._given)
        for rank in range(ranks):
            # The rank's rows of all that there are with this batch, less those that it has.
            due = (before + batch.num_rows + ranks - 1 - rank) // ranks
            count = due - self._given[rank]
            taker = self._takers[rank]
            if count and not (taker is not None and taker.has_left):
                data = memoryview(as_stream(batch.slice(at, count)))
                yield b"".join([wire.HEADER.pack(wire.BATCH, len(data)), data])
            else:
                yield None
            self._given[rank] = due
            at += count

    def _all_left(self) -> bool:
        return all(taker is not None and taker.has_left for taker in self._takers)

    def _send(self, frames: Sequence[bytes | None]) -> None:
        """Sends each rank its frame, to all at the same time: one that waits for another can't keep it from its own.
        Waits for ranks that have not asked yet."""
        left: dict[int, memoryview] = {at: memoryview(data) for at, data in enumerate(frames) if data}
        while left and not self._stopping.is_set():
            polled = select.poll()
            polled.register(self._woken, select.POLLIN)
            polled.register(self._listening, select.POLLIN)
            for connection in self._new:
                polled.register(connection, select.POLLIN)
            for at, taker in enumerate(self._takers):
                if taker is not None and not taker.has_left:
                    polled.register(taker.connection, select.POLLOUT if at in left else 0)
            found = {number for number, _ in polled.poll()}
            if self._listening.fileno() in found:
                self._accept()
            for connection in [new for new in self._new if new.fileno() in found]:
                self._greet(connection)
            for at, taker in enumerate(self._takers):
                if taker is None or (not taker.has_left and taker.connection.fileno() not in found):
                    continue
                if at in left:
                    left[at] = taker.send(left[at])
                elif not taker.has_left:
                    taker.leave()  # nothing to send, and yet there is news: it has closed its end
                if taker.has_left or not left.get(at):
                    left.pop(at, None)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listening.accept()
            connection.setblocking(False)
            if wire.is_own_user(connection):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wire.RING_BYTES)
                self._new.append(connection)
            else:
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        """Hears which rank this is; a second one of a rank is refused."""
        self._new.remove(connection)
        try:
            kind, length = wire.HEADER.unpack(connection.recv(wire.HEADER.size))
            rank = int(connection.recv(min(length, _HELLO_BYTES)))
            if kind != wire.HELLO:
                raise ValueError(kind)
        except (OSError, ValueError, struct.error):
            connection.close()
            return
        at = rank % len(self._takers)
        if self._takers[at] is None:
            self._takers[at] = _Taker(connection)
            return
        said = f"the rows of the data set {self._name!r} have been taken by another process of rank {rank}"
        with contextlib.suppress(OSError):
            connection.send(wire.frame(wire.ERROR, said.encode()))
        connection.close()


class _Taker:
    """A rank's connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.has_left = False

    def send(self, data: memoryview) -> memoryview:
        """Sends what goes at once; gives what is left of it."""
        if self.has_left:
            return data
        try:
            return data[self.connection.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            self.leave()
            return data

    def leave(self) -> None:
        self.has_left = True
        self.connection.close()
