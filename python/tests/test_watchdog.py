"""What a rank's watchdog tells: whether the main thread runs Python, and its stacks on a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from support.one_rank import RankRun, sent

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(60)


def test_a_beat_says_whether_the_main_thread_has_run_python(run_rank: RunRank) -> None:
    def train(is_blocked: bool) -> float:
        import os
        import threading
        import time

        began = time.monotonic()
        if is_blocked:
            reading, writing = os.pipe()
            threading.Timer(3.5, os.write, (writing, b"x")).start()
            os.read(reading, 1)
        while time.monotonic() < began + 3.5:
            pass
        return time.monotonic() - began

    blocked, busy = run_rank(sent(train, True)), run_rank(sent(train, False))
    assert blocked.result >= 3.4, "RANK-32: a system call that blocks stays blocked"
    assert len(blocked.beats) >= 3
    assert [beat["ran"] for beat in blocked.beats[2:4]].count(True) == 0, "RANK-32"
    assert [beat["ran"] for beat in busy.beats[1:3]] == [True, True], "RANK-32"


def test_stacks_are_written_on_the_signal(run_rank: RunRank) -> None:
    def train() -> bool:
        import os
        import signal

        stacks = os.path.join(os.environ["PHALANX_RANK_DIR"], "stacks")
        was_there = os.path.exists(stacks)
        os.kill(os.getpid(), signal.SIGRTMIN + 5)
        return was_there

    end = run_rank(sent(train), PHALANX_STACKS_SIGNAL=str(signal.SIGRTMIN + 5))
    assert end.result is True, "RANK-33: where the file is, the signal is taken"
    assert " in train" in (end.directory / "stacks").read_text(), "RANK-33"


def test_a_watchdog_imports_no_extension(run_rank: RunRank) -> None:
    def train() -> bool:
        import sys
        import time

        time.sleep(1.5)
        return "phalanx._native" in sys.modules

    end = run_rank(sent(train))
    assert end.beats
    assert end.result is False, "RANK-34"
