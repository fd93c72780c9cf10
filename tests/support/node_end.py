"""The node's end of a rank's socket, played by a test."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import zlib
from typing import Any

from phalanx.rank.node_socket import NodeSocket

# What the words say where there is no step.
NO_STEP = 2**64 - 1
# How long a block of a rank's reports is, and the memory of its words, its reports and its notices.
BLOCK_BYTES = 64 << 10
MEMORY_BYTES = 4096 + 16 * BLOCK_BYTES + (256 << 10)


def pair() -> tuple[socket.socket, socket.socket]:
    """The node's end and the rank's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def node_and_rank() -> tuple[socket.socket, NodeSocket]:
    """The node's end, and the rank's as the rank has it, in this process."""
    node, end = pair()
    return node, NodeSocket(end.detach())


def notes_at(node: socket.socket) -> list[dict[str, Any]]:
    """The notes that are there for the node."""
    packets = b""
    node.setblocking(False)
    while True:
        try:
            packet = node.recv(1 << 20)
        except ConnectionResetError:  # the rank has left news unread
            continue
        except BlockingIOError:
            packet = b""
        if not packet:
            return [json.loads(line) for line in packets.splitlines()]
        packets += packet


def tell(node: socket.socket, kind: str, version: int = 1, **rest: Any) -> None:
    """Tells the rank news, as a node does."""
    node.send(json.dumps({"version": version, "kind": kind, **rest}).encode())


def tell_words(node: socket.socket, generation: int) -> memoryview:
    """Gives the rank its words, as a node does; the words, as the node has them."""
    fd = os.memfd_create("words", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, MEMORY_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    words = memoryview(mmap.mmap(fd, MEMORY_BYTES)).cast("B").cast("Q")
    words[0], words[1], words[2], words[3], words[7] = 1, generation, NO_STEP, NO_STEP, NO_STEP
    socket.send_fds(node, [b'{"version":1,"kind":"words"}'], [fd])
    os.close(fd)
    return words


def reports_in(words: memoryview) -> list[tuple[int, dict[str, Any]]]:
    """The reports that a rank's memory has, with their numbers, as `rust/supervisor/src/report_reader.rs` says."""
    memory, found = words.cast("B"), []
    begun = words[6]
    for block in range(max(0, begun - 16), begun):
        at = 4096 + block % 16 * BLOCK_BYTES
        sequence, first, used, zero = words[at // 8 : at // 8 + 4]
        assert (sequence, zero) == (block + 1, 0)
        place, number, end = at + 32, first, at + 32 + used
        while place < end:
            crc, length = words[place // 8] >> 32, words[place // 8] & 0xFFFFFFFF
            text = bytes(memory[place + 8 : place + 8 + length])
            assert zlib.crc32(number.to_bytes(8, "little") + text) == crc
            found.append((number, json.loads(text)))
            place += 8 + (length + 7) // 8 * 8
            number += 1
    return found
