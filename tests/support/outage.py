"""A network between nodes and hub that can fail: a proxy that passes bytes on, and stops doing so when it is told.

As `rust/job/tests/common/outage.rs`, for drivers in Python.

reset    connections are closed, and new ones refused
pause    nothing passes; what was sent waits, and passes when the outage is over
forget   nothing passes, nobody is told, and the connections that there were stay dead when new ones pass
"""

from __future__ import annotations

import contextlib
import socket
import threading


class Network:
    """Ends with its process."""

    def __init__(self, hub: str, at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        host, port = hub.rsplit(":", 1)
        self._hub = host, int(port)
        self._outage: str | None = None
        self._epoch = 0
        self._changed = threading.Condition()
        self._open: list[socket.socket] = []
        self.connections = 0
        """How many there have been."""
        self._listener = socket.create_server(at)
        self.address = f"{at[0]}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def fails(self, outage: str) -> None:
        with self._changed:
            self._outage = outage
            self._epoch += outage != "pause"
            if outage == "reset":
                for connection in self._open:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
                self._open.clear()

    def works(self) -> None:
        with self._changed:
            self._outage = None
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with self._changed:
                if self._outage == "reset":
                    client.close()
                    continue
                try:
                    server = socket.create_connection(self._hub, 5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                epoch = self._epoch
                self._open += [client, server]
                self.connections += 1
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(*pair, epoch), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, epoch: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                with self._changed:
                    self._changed.wait_for(lambda: self._outage is None and self._epoch == epoch)
                to.sendall(data)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
