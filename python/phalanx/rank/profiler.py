"""What a rank does for some seconds, when its driver asks: a trace of torch's operations, and samples of Python stacks.

RANK-20 (asks-nothing-of-the-code): a thread of its own takes all of it. The training code's threads run no Python of
ours and get no signal. Torch's profiler is used where the training code has imported torch.
RANK-21 (bounded): samples come `SAMPLES_A_SECOND` times a second and give `MAX_SPANS` spans at most. A trace of
torch's that is longer than `MAX_TRACE_BYTES` is left out, and the profile says so. A rank keeps one profile.
RANK-22 (never-raises): what can't be had is a sentence in the profile.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import sys
import time

from ..plumbing.whole_file import whole_or_absent
from . import contract

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any, BinaryIO

SAMPLES_A_SECOND = 100
MAX_SPANS = 100_000
MAX_DEPTH = 100
MAX_TRACE_BYTES = 64 << 20
MAX_SECONDS = 60.0

_Frame = tuple["CodeType", int]


def take(directory: str, number: int, seconds: float, main: int, watchdog: int) -> None:
    """Leaves the profile of the next `seconds` in the rank's folder: a line of JSON, then torch's own trace, if any.
    `main` and `watchdog` are threads of the rank: the one that is shown as such, and one that isn't shown."""
    # Nobody reads an older one any more.
    for entry in os.scandir(directory):
        if entry.name.startswith(contract.FILE_PROFILE):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
    trace = os.path.join(directory, f"torch-trace-{number}.json")
    try:
        torch = _TorchTrace()
        samples = _Samples(main, {watchdog, _thread.get_ident()})
        seconds = min(seconds, MAX_SECONDS)
        samples.take(seconds)
        why_not = torch.save(trace, seconds)
        told = {"pid": os.getpid(), "spans": samples.spans(), "torch": why_not}
        with whole_or_absent(os.path.join(directory, f"{contract.FILE_PROFILE}{number}")) as file:
            file.write(json.dumps(told).encode() + b"\n")
            if not why_not:
                _append(file, trace)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(trace)


def _append(file: BinaryIO, path: str) -> None:
    with open(path, "rb") as trace:
        while piece := trace.read(1 << 20):
            file.write(piece)


class _TorchTrace:
    """Torch's profiler over all threads, from now on."""

    def __init__(self) -> None:
        self._profiler: Any = None
        self._why_not = ""
        torch = sys.modules.get("torch")
        if torch is None or getattr(torch.__spec__, "_initializing", False):
            self._why_not = "the rank has not imported torch"
            return
        try:
            from torch._C._profiler import _ExperimentalConfig
            from torch.profiler import ProfilerActivity, profile

            try:
                threads = _ExperimentalConfig(profile_all_threads=True)
            except TypeError:
                self._why_not = f"torch {torch.__version__} can't trace the operations of all threads"
                return
            # A rank that has not begun to use its GPUs isn't made to.
            on_gpu = "torch.cuda" in sys.modules and torch.cuda.is_initialized()
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
            profiler = profile(activities=activities, experimental_config=threads)
            profiler.start()
            self._profiler = profiler
        except Exception as error:  # the training code profiles by itself, or it is another torch
            self._why_not = f"torch's profiler can't be used: {type(error).__name__}: {error}"

    def save(self, path: str, seconds: float) -> str:
        """Ends it and writes what it has of these seconds; why there is nothing, or empty."""
        if self._profiler is None:
            return self._why_not
        try:
            self._profiler.stop()
            self._profiler.export_chrome_trace(path)
            size = os.path.getsize(path)
        except Exception as error:  # the training code has stopped it, or the disk is full
            return f"torch's profiler can't be used: {type(error).__name__}: {error}"
        if size > MAX_TRACE_BYTES:
            fits = 0.9 * seconds * MAX_TRACE_BYTES / size
            return (
                f"torch's trace of {seconds:g} s has {size >> 20} MiB, more than the limit of "
                f"{MAX_TRACE_BYTES >> 20} MiB: ask for {fits:.2g} s"
            )
        return ""


class _Samples:
    """The Python stacks of the rank's threads, as spans: a frame lasts from the sample in which it appears to the one
    in which it is gone."""

    def __init__(self, main: int, left_out: set[int]) -> None:
        self._main = main
        self._left_out = left_out
        self._open: dict[int, list[tuple[_Frame, int]]] = {}
        self._spans: list[tuple[int, _Frame, int, int]] = []

    def take(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and len(self._spans) < MAX_SPANS:
            frames = sys._current_frames()
            now = time.time_ns()
            stacks = {
                thread: _stack(frame) for thread, frame in frames.items() if thread not in self._left_out
            }
            del frames  # nobody's variables are kept from going
            for thread in self._open.keys() | stacks.keys():
                self._sample(thread, stacks.get(thread, []), now)
            time.sleep(min(1 / SAMPLES_A_SECOND, left))
        now = time.time_ns()
        for thread in self._open:
            self._sample(thread, [], now)

    def _sample(self, thread: int, stack: list[_Frame], now: int) -> None:
        known = self._open.setdefault(thread, [])
        same = 0
        while same < min(len(known), len(stack)) and known[same][0][0] is stack[same][0]:
            same += 1
        while len(known) > same:
            frame, since = known.pop()
            self._spans.append((thread, frame, since, now))
        known += [(frame, now) for frame in stack[same:]]

    def spans(self) -> list[dict[str, Any]]:
        """By thread, as JSON: what ran, where, from when to when in nanoseconds since 1970."""
        # Imported here for the first time, it would take this thread for the main one.
        threading = sys.modules.get("threading")
        names = {} if threading is None else {thread.ident: thread.name for thread in threading.enumerate()}
        names[self._main] = "MainThread"
        return [
            {
                "thread": names.get(thread, f"thread {thread}"),
                "name": getattr(code, "co_qualname", code.co_name),
                "where": f"{code.co_filename}:{line}",
                "from": since,
                "to": until,
            }
            for thread, (code, line), since, until in self._spans
        ]


def _stack(frame: FrameType | None) -> list[_Frame]:
    """A thread's frames, outermost first; of very deep ones the innermost."""
    stack: list[_Frame] = []
    while frame is not None and len(stack) < MAX_DEPTH:
        stack.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    stack.reverse()
    return stack
