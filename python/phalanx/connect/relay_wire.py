"""What a client of Spark Connect and its relay on the server say to each other.

`jvm/spark/src/main/scala/dev/phalanx/spark/connect/RelayWire.scala` is the server's side, and describes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from .. import _native

ADDRESS, OPENED, DATA, ENDED = b"aode"
"""The kinds of frames: where tasks connect to, a new connection, what came over it, its end."""

_FRAME = struct.Struct(">BiI")


class Frame(NamedTuple):
    """A piece of a connection."""

    kind: int
    connection: int
    data: bytes


def open_command(relay: str, *, awaited: int, patience_ms: int, port: int) -> bytes:
    """Opens the relay, or has it go on with the message of the number `awaited`."""
    return b"O" + _text(_native.VERSION) + _text(relay) + struct.pack(">qii", awaited, patience_ms, port)


def send_command(
    relay: str, *, number: int, awaited: int, consumed: Mapping[int, int], frames: Iterable[Frame]
) -> bytes:
    """Brings frames, and tells how many bytes of connections have been consumed, in all."""
    parts = [b"S", _text(relay), struct.pack(">qqi", number, awaited, len(consumed))]
    parts += [struct.pack(">iq", *of_connection) for of_connection in consumed.items()]
    for kind, connection, data in frames:
        parts += [_FRAME.pack(kind, connection, len(data)), data]
    return b"".join(parts)


def close_command(relay: str) -> bytes:
    """Ends the relay."""
    return b"C" + _text(relay)


def message(value: bytes) -> tuple[int, list[Frame]]:
    """The number of a relay's message, and its frames."""
    return int.from_bytes(value[:8], "big"), list(_frames(value))


def stalled(value: bytes) -> set[int]:
    """What answers `send_command`: the connections from which nothing should be read for now."""
    (count,) = struct.unpack_from(">i", value)
    return set(struct.unpack_from(f">{count}i", value, 4))


def _frames(value: bytes) -> Iterator[Frame]:
    at = 8
    while at < len(value):
        kind, connection, length = _FRAME.unpack_from(value, at)
        at += _FRAME.size
        yield Frame(kind, connection, value[at : at + length])
        at += length


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data
