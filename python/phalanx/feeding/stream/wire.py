"""What a task and its ranks say to one another about a streamed data set, over a socket of their host.

A rank connects and says who it is: a frame HELLO. From then on the task sends: BATCH, one Arrow record batch as an IPC
stream, again and again; at last END, or ERROR with a sentence. A frame is a kind, a length (`u64`, little-endian), and
so many bytes.

FEED-57 (own-user): both ends look at the other's user. The address has no file: it is a name of Linux's abstract
namespace, random, and told only to the task's ranks, in their payload.
FEED-58 (end-said): rows have ended well only where END has said so, with their number. A connection that just ends is
an error.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

HELLO, BATCH, END, ERROR = b"H", b"B", b"E", b"X"

HEADER = struct.Struct("<cQ")
# What the system keeps between the two ends, if it allows so much: a bounded ring.
RING_BYTES = 1 << 20


class StreamBroken(RuntimeError):
    """The other end has gone."""


def new_address() -> str:
    """An address that nobody can guess."""
    return f"phalanx-stream-{os.urandom(16).hex()}"


def listen(address: str) -> socket.socket:
    """A socket that takes connections at `address`."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(f"\0{address}")
    made.listen(64)
    made.setblocking(False)
    return made


def connect(address: str) -> socket.socket:
    """A connection to `address`.

    Raises `StreamBroken` where nobody is there, or another user.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.connect(f"\0{address}")
        if not is_own_user(made):
            raise StreamBroken("it belongs to another user")
    except OSError as problem:
        made.close()
        raise StreamBroken(str(problem)) from problem
    except BaseException:
        made.close()
        raise
    return made


def is_own_user(connection: socket.socket) -> bool:
    """Whether the process at the other end is one of this process's user."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", told)
    return bool(user == os.geteuid())


def frame(kind: bytes, body: bytes = b"") -> bytes:
    """A small frame."""
    return HEADER.pack(kind, len(body)) + body


def receive(connection: socket.socket) -> tuple[bytes, Any]:
    """The next frame: its kind, and its bytes in memory of their own. Blocks.

    Raises `StreamBroken` where the connection ends before.
    """
    kind, length = HEADER.unpack(_exactly(connection, HEADER.size))
    return kind, _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, at = memoryview(data), 0
    while at < length:
        try:
            count = connection.recv_into(view[at:])
        except OSError as problem:
            raise StreamBroken(str(problem)) from problem
        if count == 0:
            raise StreamBroken("the connection has ended")
        at += count
    return data
