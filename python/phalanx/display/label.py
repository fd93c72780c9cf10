"""What tells the output of several runs of this process apart.

DISPLAY-9 (told-apart): as long as several runs of a process go on, each of their lines has its run's label, as in
`[train 2: rank 0] loss 0.1`. The labels of runs that go on at once differ. A run that is alone has none in its lines.
`RunLabel.scala` does the same of a JVM's runs, and `tests/contract/output.json` has the cases of both.
"""

from __future__ import annotations

import itertools
import re
import threading

_lock = threading.Lock()
_running: set[str] = set()

# The core begins each line, and each state of a progress bar, with who wrote it. It gives whole lines.
_WHO = re.compile(r"(^|[\n\r])\[")


class Label:
    """A run's label as long as the block lasts: its name, or with a number behind it where another run has that."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.text = name

    def __enter__(self) -> Label:
        names = itertools.chain([self._name], (f"{self._name} {number}" for number in itertools.count(2)))
        with _lock:
            self.text = next(name for name in names if name not in _running)
            _running.add(self.text)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _running.discard(self.text)

    def on(self, text: str) -> str:
        """What the core gave of this run's output, with the label where other runs go on."""
        if len(_running) < 2:
            return text
        return _WHO.sub(lambda at: f"{at[1]}[{self.text}: ", text)
