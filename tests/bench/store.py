"""The c10d store: ours beside torch's own (libuv), under the same load.

    python tests/bench/store.py [--quick]

The load generator (rust/rendezvous/examples/store_load.rs) drives raw connections, one outstanding request
each, so the servers are what differs; it shares the machine with them. torch's server looks up the name of
every peer that connects, so its rows need a mount namespace in which names come from files only; one row
shows it as it is. The rows of `encryption` compare a direct connection to our store with one through an entrance, as
between hosts whose nodes encrypt; all of it is on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from common import Report, Served, build_example, interleaved, note

OPERATIONS = ("set", "get", "waitget", "add")
CLIENTS = (1, 16, 64)
RENDEZVOUS = (64, 256, 1000)
# A rendezvous takes under two seconds, unless a resolver doesn't answer: then five seconds a connection.
RENDEZVOUS_LIMIT_S = 20
WITHOUT_DNS = 'mount --bind "$0" /etc/nsswitch.conf && exec "$@"'


def serve_torch() -> None:
    import torch.distributed as dist

    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, None, True, wait_for_workers=False
    )
    print(f"127.0.0.1:{store.port}", flush=True)
    sys.stdin.read()
    os._exit(0)  # The server's own end waits up to half a second.


def without_dns(directory: str) -> list[str] | None:
    """What to put before a command so that names resolve from files only; None if not permitted."""
    if not shutil.which("unshare"):
        return None
    switch = Path(directory, "nsswitch.conf")
    switch.write_text("hosts: files\n")
    for namespace in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        prefix = [*namespace, "sh", "-c", WITHOUT_DNS, str(switch)]
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    return None


def measure(load: Path, address: str, arguments: list[str], key: str) -> Callable[[], float]:
    def run() -> float:
        result = subprocess.run(
            [load, address, *arguments], capture_output=True, text=True, timeout=120, check=True
        )
        return float(json.loads(result.stdout)[key])

    return run


def measure_bounded(load: Path, address: str, clients: int) -> Callable[[], float]:
    """A rendezvous that counts as the limit if it takes longer."""

    def run() -> float:
        command: list[str | Path] = [load, address, "rendezvous", str(clients)]
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=RENDEZVOUS_LIMIT_S, check=True
            )
        except subprocess.TimeoutExpired:
            return float(RENDEZVOUS_LIMIT_S)
        return float(json.loads(result.stdout)["total_s"])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: within a minute")
    parser.add_argument("--serve-torch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_torch:
        return serve_torch()

    repetitions = 3 if arguments.quick else 9
    load = build_example("phalanx-rendezvous", "store_load")
    torch_server = [sys.executable, __file__, "--serve-torch"]
    report = Report("store")
    with ExitStack() as stack:
        prefix = without_dns(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = stack.enter_context(Served([load, "serve"])).address
        if prefix is None:
            note("skipped all rows but one: no mount namespace is permitted, to keep torch off the resolver")
        else:
            theirs = stack.enter_context(Served([*prefix, *torch_server])).address
            servers = {"phalanx": ours, "torch": theirs}
            for operation in OPERATIONS:
                for clients in CLIENTS:
                    count = (3_000 if clients == 1 else 12_000) * (1 if arguments.quick else 3)
                    load_arguments = [operation, str(clients), str(count)]
                    runs = {
                        impl: measure(load, address, load_arguments, "ops_per_s")
                        for impl, address in servers.items()
                    }
                    for impl, values in interleaved(runs, repetitions).items():
                        report.add(impl, f"{operation}, {clients} clients", "throughput", "1/s", values)
            for clients in RENDEZVOUS:
                runs = {
                    impl: measure(load, address, ["rendezvous", str(clients)], "total_s")
                    for impl, address in servers.items()
                }
                for impl, values in interleaved(runs, repetitions).items():
                    report.add(impl, f"rendezvous, {clients} clients", "time", "s", values)
        through = stack.enter_context(Served([load, "serve-through"])).address
        ways = {"direct": ours, "through": through}
        for operation in ("set", "get"):
            for clients in CLIENTS:
                load_arguments = [operation, str(clients), str(3_000 if arguments.quick else 10_000)]
                runs = {way: measure(load, to, load_arguments, "ops_per_s") for way, to in ways.items()}
                for way, values in interleaved(runs, repetitions).items():
                    report.add(
                        way, f"{operation}, {clients} clients, encryption", "throughput", "1/s", values
                    )
        runs = {way: measure(load, to, ["values", "8"], "seconds") for way, to in ways.items()}
        for way, values in interleaved(runs, repetitions).items():
            report.add(way, "64 MiB set and read, encryption", "time", "s", values)
        as_it_is = stack.enter_context(Served(torch_server)).address
        runs = {
            impl: measure_bounded(load, address, 64)
            for impl, address in {"phalanx": ours, "torch": as_it_is}.items()
        }
        for impl, values in interleaved(runs, 1 if arguments.quick else 5).items():
            report.add(impl, "rendezvous, 64 clients, reverse DNS as configured", "time", "s", values)
    report.table()


if __name__ == "__main__":
    main()
