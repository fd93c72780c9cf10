"""The way to the executors through a Spark Connect server, for a client that they can't connect to.

The server has Phalanx's plugin, which listens there in the hub's place (`dev.phalanx.spark.ways.Relay`). What comes
over its connections comes here as the answers to a command of this client's, and goes on to the hub, which is in this
process; what the hub says goes back by short commands.

A client whose connection to its server breaks tries again for as long as a node may be silent: each side keeps what the
other hasn't confirmed. What the hub doesn't take stays on its way, and other connections go on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import relay_wire as wire
from .server import Away, ConnectServer, Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("phalanx")

# How long the server may take for the first answer, for a short command, and how long to wait before the next try.
_OPEN_S = 60.0
_ASK_S = 15.0
_AGAIN_S = 1.0
# How often the server hears of this client, how late it hears at the most of what has been consumed, and how often it
# is asked about connections that are to wait.
_KEEPALIVE_S = 5.0
_CONSUMED_S = 0.05
_STALLED_S = 0.1
# How much is read at once, goes into a command, and may be consumed before the server hears of it.
_READ_BYTES = 64 << 10
_COMMAND_BYTES = 512 << 10
_CONSUMED_BYTES = 512 << 10
# How long the threads may take to end, and the server's answers.
_END_S = 5.0
_CLOSE_S = 1.0

DEFAULTS = {"spark.phalanx.nodeTimeout": "90s"}
"""Settings that are others where tasks may come through a server: its client may be cut off from it for a while."""

NO_PLUGIN = (
    "spark.phalanx.connect is relay, but this session's Spark Connect server doesn't have Phalanx's plugin: "
    "start the server with the jar and spark.plugins=dev.phalanx.spark.PhalanxPlugin, on Spark 4.0 or later"
)

_EXTENSIONS = "spark.connect.extensions.command.classes"
_PLUGIN = "dev.phalanx.spark.connect.ConnectPlugin"

# Sessions whose executors can't connect to this client.
_unreachable: set[str] = set()


class Unavailable(Exception):
    """The server can't relay; why."""


def has_plugin(spark: SparkSession) -> bool:
    """Whether a session's server says that it has the plugin."""
    try:
        return _PLUGIN in (spark.conf.get(_EXTENSIONS, None) or "")
    except Exception as problem:
        logger.debug("The server doesn't tell its plugins: %s", problem)
        return False


def is_preferred(spark: SparkSession) -> bool:
    """Whether a run of this session has had to go through the server."""
    return spark.session_id in _unreachable


class _Connection:
    """One connection between the relay and the hub."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.towards_hub: deque[memoryview] = deque()
        self.is_over = False
        """Whether nothing follows what waits for the hub."""
        self.consumed = 0
        self.told = 0

    def write(self) -> None:
        """Gives the hub what it takes; raises `OSError` where it has ended."""
        while self.towards_hub:
            piece = self.towards_hub[0]
            sent = self.end.send(piece)
            self.consumed += sent
            if sent < len(piece):
                self.towards_hub[0] = piece[sent:]
                return
            self.towards_hub.popleft()


class Relay:
    """The way of one run through the server. It has two threads, until `close`."""

    def __init__(self, spark: SparkSession, hub: tuple[str, int], *, patience: float, port: int = 0) -> None:
        """`hub` is where it listens in this process, `patience` after how many seconds of silence this client is gone
        for the server, `port` where the server begins to look for a free port; 0 for any.

        Raises `Unavailable`.
        """
        self.address = ""
        """Where tasks connect to: host:port."""
        self._spark = spark
        self._hub = hub
        self._patience = patience
        self._port = port
        self._name = os.urandom(16).hex()
        self._tags = tuple(spark.getTags())
        self._awaited = 0
        self._number = 0
        self._refused: str | None = None
        self._is_closed = False
        self._opened = threading.Event()
        self._arrived: deque[wire.Frame] = deque()
        self._connections: dict[int, _Connection] = {}
        self._stalled: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._wakes, self._woken = socket.socketpair()
        self._wakes.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._followed: ConnectServer | None = None
        self._listener = threading.Thread(target=self._listen, name="phalanx-connect-answers", daemon=True)
        self._carrier = threading.Thread(target=self._carry, name="phalanx-connect-relay", daemon=True)
        self._listener.start()
        self._opened.wait(_OPEN_S)
        if not self.address:
            refused = self._refused
            self.close()
            raise Unavailable(refused or "the Spark Connect server did not answer")
        self._carrier.start()

    def close(self) -> None:
        """Ends it, at the server, too; waits some seconds at most."""
        self._is_closed = True
        self._wake()
        if self._carrier.ident is not None:
            self._carrier.join(_END_S)
        else:
            self._selector.close()
            self._wakes.close()
            self._woken.close()
        self._listener.join(_CLOSE_S)  # the server ends its answers when it hears of the end
        if (followed := self._followed) is not None:
            followed.close()
        self._listener.join(_END_S)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake already, or over
            self._wakes.send(b"w")

    # What the server sends.

    def _listen(self) -> None:
        before: list[str] = []
        while not self._is_over():
            server = self._followed = ConnectServer(self._spark)
            try:
                command = wire.open_command(
                    self._name, awaited=self._awaited, patience_ms=int(self._patience * 1000), port=self._port
                )
                for value in server.follow(command, self._tags):
                    self._take(value)
                    # The server has let the one before go when it answers this one; sooner would end the relay.
                    while before:
                        server.release(before.pop())
            except Away as problem:
                logger.debug("The relay's answers break off: %s", problem)
                self._pause()
            except Refused as problem:
                self._end(str(problem))
            except Exception as problem:
                self._end(f"{type(problem).__name__}: {problem}")
            finally:
                before.append(server.followed)
                if self._is_over():
                    for operation in before:
                        server.release(operation)
                server.close()
        self._opened.set()

    def _pause(self) -> None:
        until = time.monotonic() + _AGAIN_S
        while not self._is_over() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _take(self, value: bytes) -> None:
        number, frames = wire.message(value)
        if number != self._awaited:  # the command before was still answering
            return
        self._awaited = number + 1
        for frame in frames:
            if frame.kind == wire.ADDRESS:
                self.address = frame.data.decode()
                self._opened.set()
            else:
                self._arrived.append(frame)
        self._wake()

    def _end(self, why: str) -> None:
        self._refused = why
        self._opened.set()
        self._wake()

    def _is_over(self) -> bool:
        return self._is_closed or self._refused is not None

    # What goes on to the hub and comes from it.

    def _carry(self) -> None:
        server = ConnectServer(self._spark)
        heard = told = time.monotonic()
        try:
            while not self._is_over():
                frames = self._turn(self._wait(told))
                if not frames and not self._has_to_tell(told):
                    continue
                command = self._next_command(frames)
                while not self._is_over():
                    try:
                        self._stalled = wire.stalled(server.ask(command, _ASK_S))
                        heard = told = time.monotonic()
                        break
                    except Away as problem:
                        logger.debug("The relay's server is away: %s", problem)
                        if time.monotonic() - heard > self._patience:
                            self._end(f"it could not be reached for {self._patience:g} s: {problem}")
                        server.close()
                        if (followed := self._followed) is not None:
                            followed.cancel()  # it may be dead without a word
                        self._pause()
                        server = ConnectServer(self._spark)
            if self._is_closed and self.address:
                server.ask(wire.close_command(self._name), _ASK_S / 2)
        except (Away, Refused) as problem:
            self._end(str(problem))
        finally:
            server.close()
            if not self._is_closed:
                logger.warning(
                    "The connection to the executors through the Spark Connect server has ended: %s",
                    self._refused,
                )
                if (followed := self._followed) is not None:
                    followed.cancel()
            for connection in self._connections.values():
                connection.end.close()
            self._selector.close()
            self._wakes.close()
            self._woken.close()

    def _wait(self, told: float) -> list[tuple[selectors.SelectorKey, int]]:
        pause = min(_KEEPALIVE_S, self._patience / 4)
        if self._stalled:
            pause = _STALLED_S
        if any(connection.consumed > connection.told for connection in self._connections.values()):
            pause = _CONSUMED_S
        return self._selector.select(max(0.0, told + pause - time.monotonic()))

    def _has_to_tell(self, told: float) -> bool:
        unheard = sum(each.consumed - each.told for each in self._connections.values())
        since = time.monotonic() - told
        return (
            unheard >= _CONSUMED_BYTES
            or since >= min(_KEEPALIVE_S, self._patience / 4)
            or (unheard > 0 and since >= _CONSUMED_S)
            or (bool(self._stalled) and since >= _STALLED_S)
        )

    def _turn(self, ready: list[tuple[selectors.SelectorKey, int]]) -> list[wire.Frame]:
        """Moves what there is; what the server has to be told."""
        frames: list[wire.Frame] = []
        while self._arrived:
            self._arrive(self._arrived.popleft(), frames)
        budget = _COMMAND_BYTES
        for key, events in ready:
            if key.data is None:
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
            elif events & selectors.EVENT_READ and key.data in self._connections and budget > 0:
                budget -= self._read(key.data, frames)
        for number, connection in list(self._connections.items()):
            self._write(number, connection, frames)
        return frames

    def _arrive(self, frame: wire.Frame, frames: list[wire.Frame]) -> None:
        number = frame.connection
        if frame.kind == wire.OPENED:
            if self._is_first():
                logger.info(
                    "The executors reach this client through the Spark Connect server, at %s", self.address
                )
            try:
                end = socket.create_connection(self._hub, 5)
            except OSError as problem:
                logger.debug("The hub takes no connection: %s", problem)
                frames.append(wire.Frame(wire.ENDED, number, b""))
                return
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[number] = _Connection(end)
            self._selector.register(end, selectors.EVENT_READ, number)
        elif (connection := self._connections.get(number)) is not None:
            if frame.kind == wire.ENDED:
                connection.is_over = True
            elif frame.data:
                connection.towards_hub.append(memoryview(frame.data))

    def _is_first(self) -> bool:
        """Whether this is the first connection of this session that comes through the server; it is so once."""
        session = self._spark.session_id
        is_first = session not in _unreachable
        _unreachable.add(session)
        return is_first

    def _read(self, number: int, frames: list[wire.Frame]) -> int:
        connection = self._connections[number]
        if number in self._stalled:
            return 0
        try:
            data = connection.end.recv(_READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._drop(number)
        frames.append(wire.Frame(wire.DATA if data else wire.ENDED, number, data))
        return len(data)

    def _write(self, number: int, connection: _Connection, frames: list[wire.Frame]) -> None:
        try:
            with contextlib.suppress(BlockingIOError):
                connection.write()
        except OSError:
            self._drop(number)
            frames.append(wire.Frame(wire.ENDED, number, b""))
            return
        if connection.is_over and not connection.towards_hub:
            self._drop(number)
            return
        wanted = 0 if number in self._stalled else selectors.EVENT_READ
        wanted |= selectors.EVENT_WRITE if connection.towards_hub else 0
        is_there = connection.end.fileno() in self._selector.get_map()
        if not wanted:
            if is_there:
                self._selector.unregister(connection.end)
        elif not is_there:
            self._selector.register(connection.end, wanted, number)
        elif self._selector.get_key(connection.end).events != wanted:
            self._selector.modify(connection.end, wanted, number)

    def _drop(self, number: int) -> None:
        connection = self._connections.pop(number)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.end)
        connection.end.close()

    def _next_command(self, frames: list[wire.Frame]) -> bytes:
        self._number += 1
        consumed = {}
        for number, connection in self._connections.items():
            if connection.consumed > connection.told:
                consumed[number] = connection.told = connection.consumed
        return wire.send_command(
            self._name, number=self._number, awaited=self._awaited, consumed=consumed, frames=frames
        )


def hub_end(address: str, bind: str, is_own: Callable[[str], bool]) -> tuple[str, int]:
    """Where this process connects to its own hub, which has bound `bind` and advertises `address`."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if bind in ("0.0.0.0", "::"):
        host = "127.0.0.1" if bind == "0.0.0.0" else "::1"
    elif bind:
        host = bind
    elif not is_own(host):
        host = "127.0.0.1"  # it has bound all addresses
    return host, int(port)
