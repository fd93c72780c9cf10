"""Connections between hosts, to see whether there are any and how fast they are: a listener, and who connects to it.

It travels to the executors by value and uses the standard library only.

DOCTOR-5 (proved): who asks and who answers prove to each other that they know the examination's secret, which crosses
no connection. So an answer is that of the host that was meant, and nobody else is answered.
DOCTOR-6 (bounded): a connection ends within `_PATIENCE_S` and the time that its own request takes; a listener has
`_MOST` at the same time at most.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

_PATIENCE_S = 15.0
_MOST = 64
# The ports after a fixed one that a job would try, too: rust/rendezvous/src/listener.rs.
_PORTS = 16
_CHUNK_BYTES = 256 << 10
_MEASURED_S = 0.3
_STALLED_S = 3.0
_SMALL_BYTES = 64 << 10


class Listener:
    """Answers those who know the secret, in threads of its own, until `close`.

    `port` is one of 16 from `wanted` on, or any for 0. `take` is given what is reported. `until` is when the
    examination is over, which those who ask are told.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        who: int,
        *,
        wanted: int = 0,
        take: Callable[[dict[str, Any]], None] | None = None,
        most_bytes: int = _SMALL_BYTES,
        until: float | None = None,
    ) -> None:
        self._secret = secret
        self._who = who
        self._take = take
        self._most_bytes = most_bytes
        self._until = until
        self._socket = _listening(address, wanted)
        self.port: int = self._socket.getsockname()[1]
        self._room = threading.Semaphore(_MOST)
        self._thread = threading.Thread(target=self._accept, name="phalanx-doctor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nobody is answered any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        self._thread.join(5)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._answer, args=(connection,), name="phalanx-doctor", daemon=True
            ).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, EOFError, ValueError, KeyError, struct.error):
                until = time.monotonic() + _PATIENCE_S
                challenge = os.urandom(16)
                _send(connection, challenge, until)
                proof, text = _split(_receive(connection, self._most_bytes, until))
                if not hmac.compare_digest(proof, _proof(self._secret, b"asks", challenge, text)):
                    return
                answer = self._reply(connection, json.loads(text), until)
                said = json.dumps(answer).encode()
                _send(connection, _proof(self._secret, b"answers", challenge, said) + said, until)
                # What is unread when a socket is closed would take the answer with it.
                while time.monotonic() < until and connection.recv(_CHUNK_BYTES):
                    pass
        finally:
            self._room.release()

    def _reply(self, connection: socket.socket, asked: dict[str, Any], until: float) -> dict[str, Any]:
        if asked["do"] == "report":
            if self._take is not None:
                self._take(asked["facts"])
        elif asked["do"] == "measure":
            return _read_for(connection, until)
        left = {} if self._until is None else {"left": self._until - time.monotonic()}
        return {"who": self._who, "time": time.time(), **left}


def meet(address: str, port: int, secret: bytes, seconds: float) -> dict[str, Any]:
    """Connects and has the other end prove itself: who it is, how far its clock is ahead, with the greatest error, and
    how many seconds the examination has left, where it knows that.

    What prevents it is told by `problem` (`timeout`, `refused`, `unreachable`, `stranger`) and `text`.
    """
    return _tried(lambda: _met(address, port, secret, seconds))


def report(address: str, port: int, secret: bytes, seconds: float, facts: dict[str, Any]) -> dict[str, Any]:
    """As `meet`, and leaves facts there."""
    return _tried(lambda: _met(address, port, secret, seconds, facts))


def measure(address: str, port: int, secret: bytes, seconds: float) -> dict[str, Any]:
    """Sends for some tenths of a second: how many bytes a second arrived. What prevents it is told as by `meet`."""
    return _tried(lambda: _measured(address, port, secret, seconds))


class _Stranger(Exception):
    """Something answers there, and it isn't the host that was meant."""


def _met(
    address: str, port: int, secret: bytes, seconds: float, facts: dict[str, Any] | None = None
) -> dict[str, Any]:
    until = time.monotonic() + seconds
    asked = {"do": "meet"} if facts is None else {"do": "report", "facts": facts}
    with socket.create_connection((address, port), timeout=seconds) as connection:
        challenge = _ask(connection, secret, asked, until)
        began = time.time(), time.monotonic()
        answer = _heard(connection, secret, challenge, until)
        took = time.monotonic() - began[1]
    return {
        "who": answer["who"],
        "ahead": answer["time"] - (began[0] + took / 2),
        "error": took / 2,
        "seconds": took,
        **({"left": answer["left"]} if "left" in answer else {}),
    }


def _measured(address: str, port: int, secret: bytes, seconds: float) -> dict[str, Any]:
    until = time.monotonic() + seconds
    with socket.create_connection((address, port), timeout=seconds) as connection:
        with contextlib.suppress(OSError, AttributeError):
            # What waits here unsent is not on its way: a slow link would be busy with it long after.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _SMALL_BYTES)
        challenge = _ask(connection, secret, {"do": "measure"}, until)
        chunk = bytes(_CHUNK_BYTES)
        end = time.monotonic() + _MEASURED_S
        # A kernel that takes nothing more says by this time-out that the link has stalled.
        connection.settimeout(min(seconds, _STALLED_S))
        with contextlib.suppress(TimeoutError, BrokenPipeError):
            while time.monotonic() < end:
                connection.send(chunk)
        connection.shutdown(socket.SHUT_WR)
        answer = _heard(connection, secret, challenge, until)
    return {"bytes": answer["bytes"], "seconds": answer["seconds"]}


def _read_for(connection: socket.socket, until: float) -> dict[str, Any]:
    """Reads what comes, for so long that a slow link counts with what it brought in this time."""
    began = last = None
    taken = 0
    connection.settimeout(_STALLED_S)
    with contextlib.suppress(TimeoutError):
        while (now := time.monotonic()) < until and (began is None or now < began + 3 * _MEASURED_S):
            part = connection.recv(_CHUNK_BYTES)
            if not part:
                break
            last = time.monotonic()
            if began is None:
                began = last  # the first bytes came in no time
            else:
                taken += len(part)
    return {"bytes": taken, "seconds": max(1e-6, (last or 0.0) - (began or 0.0))}


def _tried(attempt: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return attempt()
    except TimeoutError as problem:
        return {"problem": "timeout", "text": str(problem) or "no answer in time"}
    except ConnectionRefusedError as problem:
        return {"problem": "refused", "text": problem.strerror or str(problem)}
    except (_Stranger, ValueError, KeyError, EOFError, struct.error) as problem:
        return {
            "problem": "stranger",
            "text": str(problem) or "it does not answer as this examination's hosts do",
        }
    except OSError as problem:
        return {"problem": "unreachable", "text": problem.strerror or str(problem)}


def _listening(address: str, wanted: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    problem: OSError | None = None
    for port in range(wanted, wanted + _PORTS) if wanted else (0,):
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address, port))
            listening.listen(_MOST)
            return listening
        except OSError as failed:
            listening.close()
            problem = failed
    assert problem is not None
    raise problem


def _ask(connection: socket.socket, secret: bytes, asked: dict[str, Any], until: float) -> bytes:
    challenge = _receive(connection, 16, until)
    text = json.dumps(asked).encode()
    _send(connection, _proof(secret, b"asks", challenge, text) + text, until)
    return challenge


def _heard(connection: socket.socket, secret: bytes, challenge: bytes, until: float) -> dict[str, Any]:
    proof, text = _split(_receive(connection, _SMALL_BYTES, until))
    if not hmac.compare_digest(proof, _proof(secret, b"answers", challenge, text)):
        raise _Stranger("it does not know this examination's secret")
    return dict(json.loads(text))


def _proof(secret: bytes, role: bytes, challenge: bytes, text: bytes) -> bytes:
    return hmac.digest(secret, role + challenge + text, hashlib.sha256)


def _split(message: bytes) -> tuple[bytes, bytes]:
    return message[:32], message[32:]


def _send(connection: socket.socket, message: bytes, until: float) -> None:
    connection.settimeout(max(0.01, until - time.monotonic()))
    connection.sendall(struct.pack("<I", len(message)) + message)


def _receive(connection: socket.socket, most: int, until: float) -> bytes:
    length = struct.unpack("<I", _exactly(connection, 4, until))[0]
    if length > most:
        raise ValueError(f"a message of {length} bytes")
    return _exactly(connection, length, until)


def _exactly(connection: socket.socket, count: int, until: float) -> bytes:
    found = bytearray()
    while len(found) < count:
        connection.settimeout(max(0.01, until - time.monotonic()))
        part = connection.recv(min(count - len(found), _CHUNK_BYTES))
        if not part:
            raise EOFError("it closed the connection at once")
        found += part
    return bytes(found)
