"""Reads all that passes an interface in clear, until it sees the word END; prints which other words it saw, as JSON.

sniffer.py INTERFACE END WORD...
"""

from __future__ import annotations

import json
import socket
import sys

ALL_PROTOCOLS = 3  # ETH_P_ALL
BUFFER = 64 << 20


def main() -> None:
    interface, *words = sys.argv[1:]
    end, *sought = [word.encode() for word in words]
    seen: set[bytes] = set()
    packets = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as everything:
        everything.setsockopt(socket.SOL_SOCKET, 33, BUFFER)  # SO_RCVBUFFORCE
        everything.bind((interface, 0))
        print("LISTENS", flush=True)
        while end not in seen:
            packet = everything.recv(1 << 17)
            packets += 1
            seen.update(word for word in (end, *sought) if word in packet)
    print("SNIFFED", json.dumps({"packets": packets, "seen": sorted(word.decode() for word in seen - {end})}))


if __name__ == "__main__":
    main()
