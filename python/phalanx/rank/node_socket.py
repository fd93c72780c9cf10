"""The rank's end of the socket to its node: notes go there, and news come from there.

RANK-13 (never-waits): no call here waits for the node, except `wait` and `finish`, for as long as they are told.
RANK-14 (kept): a note that must not be lost is kept where there is no room, and goes before all later ones. What
is kept is bounded. Any other note is lost rather than late.
RANK-15 (own-end): a process that the rank starts neither inherits the socket nor sends; a file that took over its
number is left alone.
RANK-16 (newest): of each kind of news the newest is there, until it is taken. What can't be read is passed over.
RANK-17 (words): a rank has its words from the start if its node gave it any, and runs as ever where it didn't.

The node's end, and what Linux does with such a pair, is in `rust/supervisor/src/rank_socket.rs`.
"""

from __future__ import annotations

import _socket
import _thread
import json
import os
import select
import sys
import time
from collections import deque

from . import contract
from .words import Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# As many phases as a node takes of a rank.
MAX_KEPT = 1000

_NOW = _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL
_RECEIVE = _socket.MSG_DONTWAIT | _socket.MSG_CMSG_CLOEXEC
# Room for one descriptor. The kernel closes what there is no room for.
_ANCILLARY_BYTES = _socket.CMSG_LEN(4)


class NodeSocket:
    """The rank's end, which is the descriptor `fd`. The node may go at any time, and the training code may close every
    descriptor that it doesn't know and open others; neither is an error here."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()
        self._kept: deque[bytes] = deque()
        # Only tried: who finds it taken has come from a signal's handler, or from another thread.
        self._sending = _thread.allocate_lock()
        self._is_open = self._hears = False
        self._news: dict[str, dict[str, Any]] = {}
        self.words: Words | None = None
        try:
            os.set_inheritable(fd, False)
            self._identity = _identity(fd)
            # So it never waits, and the descriptor, which a wrapper of this process may have, too, stays as it is.
            kind = _socket.SOCK_SEQPACKET | _socket.SOCK_NONBLOCK
            self._socket = _socket.socket(_socket.AF_UNIX, kind, 0, fd)
            self._is_open = self._hears = True
        except (OSError, ValueError):
            pass
        self._hear()

    def send(self, note: dict[str, Any], *, keep: bool = False) -> bool:
        """Sends one note, as a line of JSON; whether it has gone. With `keep` it goes later if it can't now."""
        if not self._is_ours():
            return False
        line = json.dumps(note).encode() + b"\n"
        if not keep:
            return self._send(line)
        if len(self._kept) < MAX_KEPT:
            self._kept.append(line)
        return self._send()

    def _send(self, line: bytes = b"") -> bool:
        """Sends what is kept, and then the line; whether all of it has gone."""
        if not self._sending.acquire(False):
            return False
        try:
            while self._kept:
                self._socket.send(self._kept[0], _NOW)
                self._kept.popleft()
            if line:
                self._socket.send(line, _NOW)
            return True
        except BlockingIOError:
            return False
        except OSError:
            self._is_open = False
            return False
        finally:
            self._sending.release()

    def finish(self, seconds: float) -> None:
        """Sends what is kept, for as long as that takes, and no longer than this."""
        end = time.monotonic() + seconds
        while self._kept and self._is_ours() and not self._send():
            left = end - time.monotonic()
            if left <= 0:
                return
            _poll(self._fd, select.POLLOUT, left)

    def wait(self, seconds: float) -> None:
        """Waits until there may be news, or the time is over, and sends what is kept when there is room."""
        if not self._is_ours() or not (self._hears or self._kept):
            time.sleep(seconds)
            return
        wanted = (select.POLLIN if self._hears else 0) | (select.POLLOUT if self._kept else 0)
        _poll(self._fd, wanted, seconds)
        if self._kept and self._is_ours():
            self._send()

    def news(self) -> dict[str, dict[str, Any]]:
        """What has come since this was called last: by kind, the newest. For one thread at a time."""
        self._hear()
        news, self._news = self._news, {}
        return news

    def _hear(self) -> None:
        while self._hears and self._is_ours():
            try:
                packet, ancillary, _, _ = self._socket.recvmsg(
                    contract.MAX_NEWS_BYTES, _ANCILLARY_BYTES, _RECEIVE
                )
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:  # the node has closed its end
                self._hears = False
                return
            fds = [int.from_bytes(data[:4], sys.byteorder) for _, _, data in ancillary]
            try:
                if self._keep_news(packet, fds):
                    fds = []
            except (OSError, ValueError, TypeError, KeyError):
                pass
            for fd in fds:
                os.close(fd)

    def _keep_news(self, packet: bytes, fds: list[int]) -> bool:
        """Keeps them; whether their descriptor, too."""
        said = json.loads(packet)
        if said[contract.NEWS_VERSION] != contract.NEWS_FORMAT:
            return False
        if said[contract.NEWS_KIND] == contract.NEWS_WORDS:
            if self.words is not None or not fds:
                return False
            self.words = Words(fds[0])
            return True
        self._news[said[contract.NEWS_KIND]] = said
        return False

    def _is_ours(self) -> bool:
        """Whether this process is the rank, and the number is that of the socket."""
        if not self._is_open or os.getpid() != self._pid:
            return False
        try:
            self._is_open = _identity(self._fd) == self._identity
        except OSError:
            self._is_open = False
        return self._is_open


def _identity(fd: int) -> tuple[int, int]:
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino


def _poll(fd: int, wanted: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(fd, wanted)
    poll.poll(seconds * 1000)
