"""A driver between whose hub and nodes the network fails, for a second and for good; prints one line of JSON.

outages.py FOLDER FACE...      FOLDER is where ranks leave their process ids, and hear that they may go on

DRIVER_CONF   the Spark settings as JSON
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import time
from typing import Any

from gated import LINES, train
from session import over_faces


def behind_networks() -> list[Any]:
    """From now on the nodes of each run reach its hub through a network; the newest is the last one."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
    from phalanx import _native
    from support.outage import Network

    made: list[Any] = []
    real = _native.Hub

    class Hub:
        """The hub, whose nodes are told the address of the network's other end."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._hub = real(*args, **kwargs)
            made.append(Network(self._hub.address))

        def node_spec(self, *args: Any, **kwargs: Any) -> bytes:
            spec = json.loads(self._hub.node_spec(*args, **kwargs))
            return json.dumps({**spec, "hub": made[-1].address}).encode()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._hub, name)

    _native.Hub = Hub  # type: ignore[misc, assignment]
    return made


def pids(folder: str) -> list[int]:
    return [int(open(f"{folder}/{rank}").read()) for rank in (0, 1) if os.path.exists(f"{folder}/{rank}")]


def wait(what: str, seconds: float, is_so: Any) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.02)


def outages(base: str, networks: list[Any]) -> dict[str, Any]:
    """What became of a run in each outage, over the stage that the session takes."""
    from phalanx import TorchDistributor, TrainingError
    from support.programs import gone

    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    seen: dict[str, Any] = {}
    for name in ("reset for 1 s", "forget for 1 s", "reset for good", "forget for good"):
        folder = f"{base}/{name.replace(' ', '-')}"
        os.makedirs(folder)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            run = distributor.start(train, folder)
            wait("two ranks", 120, lambda folder=folder: len(pids(folder)) == 2)
            networks[-1].fails(name.split()[0])
            began = time.monotonic()
            if not name.endswith("good"):
                time.sleep(1)
                networks[-1].works()
                open(f"{folder}/go", "w").close()
            told: dict[str, Any]
            try:
                told = {"results": [len(result) for result in run.results(90)]}
            except TrainingError as error:
                told = {"kind": error.kind, "message": error.message}
        told |= {"seconds": time.monotonic() - began, "pids": pids(folder)}
        wait("the ranks' end", 60, lambda told=told: gone(told["pids"]))
        told["seconds to the ranks' end"] = time.monotonic() - began
        for rank in (0, 1):
            lines = re.findall(rf"^\[rank {rank}\] line (\d+)$", shown.getvalue(), re.M)
            told[f"lines of {rank}"] = lines == [str(i) for i in range(LINES)]
        seen[name] = told
    return seen


def main() -> None:
    networks = behind_networks()
    over_faces(lambda base, face: outages(f"{base}/{face}", networks))


if __name__ == "__main__":
    main()
