"""What a collective call returns: torch's `Work`, over the native one.

BACKEND-18 (told-to-all): a failure reaches the caller of `wait`, and everybody who waits for the future, DDP among
them, with the collective's own message.
BACKEND-19 (work-goes-on): `wait` with a timeout raises at its end, and the work goes on.
BACKEND-20 (results-first): results are in their tensors before `wait` returns and before the future completes, even if
nobody kept the work.
BACKEND-21 (all-of-them): coalesced works are one work, which has ended when each of them has. Messages go beside
collectives, and each work brings its results itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from .._native import Work as NativeWork
from ..rank.error_record import torch_takes
from ..rank.watchdog import waits_natively

# Before torch 2.6 C++ keeps a Work of Python's without its Python half, and loses what that half overrides. So the last
# ones are kept here: C++ asks for the future at once, or waits soon.
_PYTHON_WORK_IS_KEPT = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)
_LAST: deque[Work] = deque(maxlen=256)


class CollectiveWork(Work):
    """A collective under way."""

    def __init__(self, native: NativeWork, result: Sequence[Any], finish: Callable[[], None] | None) -> None:
        super().__init__()
        self._native = native
        self._result = result
        self._finish = finish
        self._is_settled = finish is None
        self._problem: Exception | None = None
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None
        if finish is not None:
            native.on_done(self._settle)  # BACKEND-20

    def _settle(self) -> None:
        """Brings results to where the caller wants them, once; whoever comes second waits for that."""
        with self._lock:
            if not self._is_settled and self._finish is not None:
                try:
                    if not self._native.failed():
                        self._finish()
                except Exception as problem:  # for whoever waits
                    self._problem = problem
                self._finish = None
                self._is_settled = True

    @waits_natively
    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = None if timeout is None else timeout.total_seconds()
        self._native.wait(None if seconds is None or seconds <= 0 else seconds)
        if not self._is_settled:
            self._settle()
        if self._problem is not None:
            raise self._problem
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._native.is_done() and (self._is_settled or self._native.failed())

    def is_success(self) -> bool:
        return self.is_completed() and not self._native.failed() and self._problem is None

    def exception(self) -> Exception | None:
        if self._native.is_done():
            try:
                self._native.wait(None)
            except RuntimeError as problem:
                return problem
        return self._problem

    def result(self) -> list[Any]:
        return list(self._result)

    def source_rank(self) -> int:
        source = self._native.source()
        if source is None:
            raise RuntimeError("this work has received no message")
        return source

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        with self._lock:
            if self._future is None:
                # An exception set on a future, or raised by wait alone, is lost by torch's C++ or crashes it. One that
                # is raised in a callback becomes an error of C++.
                ended: Future[Any] = Future(devices=_devices(self._result))
                self._future = ended.then(self._outcome)
            else:
                return self._future
        self._native.on_done(lambda: ended.set_result(list(self._result)))
        return self._future

    def _outcome(self, _: Future[Any]) -> list[Any]:
        try:
            self.wait()
        except RuntimeError as error:
            torch_takes(error)
            raise
        return list(self._result)


class DoneWork(Work):
    """A collective that has been done, well, before it was returned."""

    def __init__(self, result: Sequence[Any] = ()) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[Any]:
        return list(self._result)

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future(devices=_devices(self._result))
        future.set_result(list(self._result))
        return future


DONE = DoneWork()


class CoalescedWork(Work):
    """Several works as one, which is done when all are (BACKEND-21)."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = 0.0 if timeout is None else timeout.total_seconds()
        deadline = time.monotonic() + seconds
        for work in self._works:
            left = max(deadline - time.monotonic(), 0.001)
            work.wait(timedelta(seconds=left if seconds > 0 else 0))  # 0 is without end
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        return next((found for work in self._works if (found := work.exception()) is not None), None)

    def result(self) -> list[Any]:
        return [one for work in self._works for one in work.result()]

    def get_future(self) -> Future[Any]:
        def outcome(_: Any) -> list[Any]:
            try:
                self.wait()
            except RuntimeError as error:
                torch_takes(error)
                raise
            return self.result()

        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(outcome)


def as_torch_keeps_it(work: Work) -> Work:
    """The work, in a way that C++ may keep."""
    if not _PYTHON_WORK_IS_KEPT:
        _LAST.append(work)
    return work


def _devices(tensors: Sequence[Any]) -> list[int | str | torch.device]:
    """A future carries tensors of other devices than the CPU only if it knows of them."""
    found: list[int | str | torch.device] = []
    for one in tensors:
        for tensor in one if isinstance(one, list | tuple) else (one,):
            if not tensor.is_cpu and tensor.device not in found:
                found.append(tensor.device)
    return found
