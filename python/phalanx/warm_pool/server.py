"""The pool's ends of its sockets: clients connect, ask for guards, and leave.

POOL-3 holds at each fork: a pool that can't be forked tells all clients why, and ends.

POOL-16 (later): what most ranks import some time after their start, a pool imports once it has had nothing to do for
two seconds, also beside its ranks. So no rank waits for that, and those that are forked after it have it.
POOL-8 (huge-pages): a pool moves its memory to huge pages, of which a fork copies a tenth of the entries, once it has
forked for three jobs and has nothing else to do, and so not while ranks share that memory. To move takes up to a second
of a processor, where the machine gets its memory from a host, and saves each job of two ranks 60 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time

from .. import _native
from .fork_safety import unfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from .module_check import Imported

# POOL-16
_LATER_MS = 2000.0
# POOL-8: after how many forks, and with how long nothing to do.
_SETTLE_FORKS, _SETTLE_MS = 3, 1000.0
# Where a guard has its control socket and the pidfd of its client; /dev/null is between.
_CONTROL, _NULL, _CLIENT = 0, 3, 4
# A peer's process, user and group.
_UCRED = "iII"


class Pool:
    """The pool's ends of the sockets. A client is a connection, until it says that it leaves or is gone.

    `import_later` imports what has time (POOL-16), and returns all that the pool has then.
    """

    def __init__(
        self,
        listener: socket.socket,
        imported: Imported,
        missing: list[str],
        idle_ms: int,
        import_later: Callable[[], Imported] | None,
    ) -> None:
        self.imported = imported
        self._import_later = import_later
        self._missing = missing
        self._listener = listener
        self._clients: dict[int, socket.socket] = {}
        self._idle_ms = idle_ms
        self._guards: dict[int, int] = {}
        """The pidfd of each guard that runs, and its process id."""
        self._forks = 0
        self._settled = False

    def serve(self) -> tuple[str, list[str], list[tuple[str, str]]]:
        """Forks a guard for each request. Returns in ranks only, with what each is to be."""
        while True:
            client = self._next_client()
            request, fds = self._request(client)
            if request is None:
                continue
            self._idle_ms = request["idle_ms"]
            problem = unfit(self.imported)
            if problem is not None:
                self.refuse(problem)
            try:
                pid = os.fork()
            except OSError as error:
                self.refuse(f"it can't fork: {error}")
            if pid == 0:
                for other in (self._listener, *self._clients.values()):
                    other.detach()  # the number is another file's from here on
                launch = _guard(request["grace_ms"], request["owned"], *fds)
                if launch is None:
                    os._exit(0)
                return launch
            self._forks += 1
            for fd in fds:
                os.close(fd)
            pidfd = os.pidfd_open(pid)
            self._guards[pidfd] = pid
            _say(client, {"forked": {"pid": pid}}, pidfd)

    def refuse(self, why: str) -> NoReturn:
        """Ends the process, and tells all clients why, those that wait for it to be ready, too."""
        self._listener.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                self._accept(None)
        for client in self._clients.values():
            _say(client, {"unfit": why})
        os._exit(0)

    def _accept(self, word: dict[str, Any] | None) -> None:
        """Takes in the next client, and says `word` to it. A user has pools of their own."""
        client, _ = self._listener.accept()
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_UCRED))
        _, user, _ = struct.unpack(_UCRED, credentials)
        if user != os.getuid():
            client.close()
            return
        self._clients[client.fileno()] = client
        if word is not None:
            _say(client, word)

    def _request(self, client: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
        """What a client asks for, with its descriptors; None if it leaves or has gone. Guards end by themselves."""
        try:
            text, fds, _, _ = socket.recv_fds(client, 4096, 2)
        except OSError:
            text, fds = b"", []
        request = json.loads(text) if text else None
        if isinstance(request, dict):
            asked: dict[str, Any] = request["guard"]
            return asked, fds
        del self._clients[client.fileno()]
        client.close()
        if request == "leave" and not self._clients and not self._guards:
            os._exit(0)
        return None, []

    def _next_client(self) -> socket.socket:
        """Waits for one that has something. Ends the process when none has for too long while no guard runs."""
        idle_until = time.monotonic() + self._idle_ms / 1000
        while True:
            poll = select.poll()
            for fd in (self._listener.fileno(), *self._clients, *self._guards):
                poll.register(fd, select.POLLIN)
            timeouts = [] if self._guards else [max(0.0, idle_until - time.monotonic()) * 1000]
            settles = not self._guards and self._forks >= _SETTLE_FORKS and not self._settled
            if self._import_later is not None:
                timeouts.append(_LATER_MS)
            elif settles:
                timeouts.append(_SETTLE_MS)
            ready = [fd for fd, _ in poll.poll(min(timeouts, default=None))]
            if not ready and (self._guards or time.monotonic() < idle_until):
                if self._import_later is not None:
                    self.imported, self._import_later = self._import_later(), None
                elif settles:
                    _native.use_huge_pages()
                    self._settled = True
            for fd in ready:
                pid = self._guards.pop(fd, None)
                if pid is not None:
                    os.close(fd)
                    os.waitpid(pid, 0)
                    idle_until = time.monotonic() + self._idle_ms / 1000
            if self._listener.fileno() in ready:
                with contextlib.suppress(OSError):  # one that has gone already
                    self._accept({"ready": {"pid": os.getpid(), "missing": self._missing}})
            for fd in ready:
                if fd in self._clients:
                    return self._clients[fd]
            if not self._guards and time.monotonic() >= idle_until:
                os._exit(0)


def _say(client: socket.socket, message: dict[str, Any], *fds: int) -> None:
    """Answers a client; one that has gone hears nothing."""
    with contextlib.suppress(OSError):
        socket.send_fds(client, [json.dumps(message).encode()], fds)


def _guard(
    grace_ms: int, owned: bool, control: int, client: int
) -> tuple[str, list[str], list[tuple[str, str]]] | None:
    """Makes this process a guard; returns None when it is over, and in the ranks that it forks what each is to be."""
    null = os.open(os.devnull, os.O_RDWR)
    # numbers that none of the places has
    control, client, null = (_at_least(fd, _CLIENT + 1) for fd in (control, client, null))
    os.dup2(control, _CONTROL)
    for fd in range(_CONTROL + 1, _NULL + 1):
        os.dup2(null, fd)
    os.dup2(client, _CLIENT)
    return _native.serve_guard(grace_ms, owned, os.fork)


def _at_least(fd: int, lowest: int) -> int:
    import fcntl

    return fd if fd >= lowest else fcntl.fcntl(fd, fcntl.F_DUPFD, lowest)
