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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gated import LINES, train
from session import session, take


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


OUTAGES = ("reset for 1 s", "forget for 1 s", "reset for good", "forget for good")


class Trial:
    """A run that has two ranks, over the stage that the session takes; it sees one of the outages."""

    def __init__(self, base: str, face: str, name: str, networks: list[Any]) -> None:
        from phalanx import TorchDistributor

        self.face, self.name = face, name
        self.how, _, self.long = name.partition(" for ")
        self.folder = f"{base}/{face}/{name.replace(' ', '-')}"
        os.makedirs(self.folder)
        distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
        self.run = distributor.start(train, self.folder, f"{face} {name}")
        wait("two ranks", 120, lambda: len(pids(self.folder)) == 2)
        self.network = networks[-1]

    def begin(self) -> None:
        self.network.fails(self.how)
        self.began = time.monotonic()

    def end(self) -> None:
        """The outage's, if it isn't for good."""
        if self.long != "good":
            self.network.works()
            open(f"{self.folder}/go", "w").close()

    def outcome(self) -> dict[str, Any]:
        """What the driver says in the end, and after how many seconds; and after how many the ranks have ended."""
        from phalanx import TrainingError
        from support.programs import gone

        try:
            outcome: dict[str, Any] = {"results": [len(result) for result in self.run.results(90)]}
        except TrainingError as error:
            outcome = {"kind": error.kind, "message": error.message}
        outcome["seconds"] = time.monotonic() - self.began
        ranks = pids(self.folder)
        wait("the ranks' end", 60, lambda: gone(ranks))
        return outcome | {"seconds to the ranks' end": time.monotonic() - self.began}

    def lines(self, shown: str) -> dict[str, bool]:
        """Whether a rank's lines were shown: each once, and in order."""
        by_rank = {
            rank: re.findall(rf"^\[(?:.+: )?rank {rank}\] {self.face} {self.name} (\d+)$", shown, re.M)
            for rank in (0, 1)
        }
        return {
            f"lines of {rank}": lines == [str(i) for i in range(LINES)] for rank, lines in by_rank.items()
        }


def main() -> None:
    """All outages over all stages at once, each between a run and a hub of its own: most of it is waiting."""
    _, base, *faces = sys.argv
    networks = behind_networks()
    spark = session(faces[0])
    shown = io.StringIO()
    trials = []
    with contextlib.redirect_stdout(shown):
        for face in faces:
            take(spark, face)
            trials += [Trial(base, face, name, networks) for name in OUTAGES]
        for trial in trials:
            trial.begin()
        time.sleep(1)
        for trial in trials:
            trial.end()
        with ThreadPoolExecutor(len(trials)) as waiting:  # what each says of itself is told at once
            outcomes = list(waiting.map(Trial.outcome, trials))
    seen: dict[str, dict[str, Any]] = {face: {} for face in faces}
    for trial, outcome in zip(trials, outcomes, strict=True):
        seen[trial.face][trial.name] = outcome | trial.lines(shown.getvalue())
    print("SEEN", json.dumps(seen), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
