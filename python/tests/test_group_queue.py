"""The queue of a group's operations: in which order they run, on which thread, and what they keep."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks
from support.tiers import whole

pytestmark = pytest.mark.timeout(120)


def works(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    n = rank.size
    works, tensors = [], [torch.full((1000,), float(k)) for k in range(50)]
    for tensor in tensors:
        works.append(dist.all_reduce(tensor, async_op=True))
    total = torch.ones(3)
    dist.all_reduce(total)  # behind the fifty: BACKEND-2, BINDING-15
    if rank.backend == "phalanx":  # gloo has several threads, and promises no order of ends
        assert all(tensor.tolist() == [float(n * k)] * 1000 for k, tensor in enumerate(tensors))
    for work, tensor in zip(works, tensors, strict=True):
        assert work.wait(timedelta(seconds=20))
        assert work.is_completed()
        assert work.is_success()
        assert torch.equal(work.result()[0], tensor)
    tensor = torch.ones(4)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    tripled = future.then(lambda done: done.value()[0] * 3)
    assert tripled.wait().tolist() == [3.0 * n] * 4
    assert future.value()[0].tolist() == [n] * 4

    def again(
        done: Any,
    ) -> Any:  # as PowerSGD's hook does: a collective inside a callback of another (BINDING-11)
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    assert dist.all_reduce(tensor, async_op=True).get_future().then(again).wait().tolist() == [n**3] * 4


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=whole("gloo")), "phalanx"])
def test_work_objects_complete_in_the_order_of_their_calls(ranks: Ranks, backend: str) -> None:
    ranks.run(works, backend=backend, size=2)


def forgotten(rank: Rank) -> None:
    import gc
    import weakref

    import torch
    import torch.distributed as dist
    from phalanx import _native

    store: Any = dist.distributed_c10d._get_default_store()
    if rank.rank == 1:
        store.wait(["forgotten"], timedelta(seconds=30))
        dist.all_reduce(torch.ones(1000))
        dist.barrier()
        return
    tensor = torch.ones(1000)
    alive = weakref.ref(tensor)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    gc.collect()
    assert alive() is not None, "it is reduced later"
    store.set("forgotten", "1")
    dist.barrier()
    end = time.monotonic() + 20
    while alive() is not None:
        assert time.monotonic() < end
        time.sleep(0.01)
        _native.setting_keys()  # what was dropped without the interpreter lock goes with the next call


def test_a_call_keeps_its_tensor_until_it_is_done_and_no_longer(ranks: Ranks) -> None:
    # BINDING-10
    ranks.run(forgotten, size=2)


def threads(rank: Rank) -> list[int]:
    import gc

    import torch
    import torch.distributed as dist

    def count() -> int:
        found = 0
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                found += Path(task, "comm").read_text().startswith("phalanx-collec")
        return found

    def wait_for(most: int, seconds: float) -> None:
        gc.collect()  # a group and what it has for other devices name each other
        end = time.monotonic() + seconds
        while count() > most and time.monotonic() < end:
            time.sleep(0.01)

    wait_for(0, 5)  # those of groups that earlier tests had here
    before = count()
    part = dist.new_group(list(range(rank.size)))
    counts = [count()]
    dist.all_reduce(torch.ones(3), group=part)
    counts.append(count())
    dist.all_reduce(torch.ones(3), group=part, async_op=True).wait()
    counts.append(count())
    dist.barrier()
    dist.destroy_process_group(part)
    del part
    wait_for(before, 20)
    return [now - before for now in [*counts, count()]]


def test_a_group_has_a_thread_only_once_something_is_left_to_it(ranks: Ranks) -> None:
    # BINDING-16
    assert ranks.run(threads, size=2) == [[0, 0, 1, 0]] * 2


def waiting(rank: Rank) -> tuple[int, bool]:
    import torch
    import torch.distributed as dist

    counted, may_end = [0], threading.Event()

    def count() -> None:
        while not may_end.wait(0.01):
            counted[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    tensor = torch.ones(1)
    try:
        if rank.rank:
            time.sleep(1)
        before = set(os.listdir("/proc/self/task"))
        dist.all_reduce(tensor)  # rank 0 is here for a second
        after = set(os.listdir("/proc/self/task"))
    finally:
        may_end.set()
        counter.join()
    return counted[0], after <= before


def test_a_call_waits_on_its_own_thread_and_lets_others_run(ranks: Ranks) -> None:
    counted, is_own = ranks.run(waiting, size=2)[0]
    assert counted > 30, "BACKEND-3: other threads of Python run meanwhile"
    assert is_own, "BACKEND-3: a synchronous call needs no thread of the group"


def polls_and_futures(rank: Rank) -> int:
    import sys

    import torch
    import torch.distributed as dist

    other, token, total = 1 - rank.rank, torch.zeros(1), 0
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(50):
            if rank.rank == 1:
                dist.recv(token, other, tag=2 * number)
                dist.send(torch.ones(1), other, tag=2 * number + 1)
                continue
            work = dist.irecv(token, other, tag=2 * number + 1)
            pollers = [threading.Thread(target=_poll, args=(work,)) for _ in range(2)]
            for poller in pollers:
                poller.start()
            future = work.get_future()  # type: ignore[union-attr]
            dist.send(token, other, tag=2 * number)  # what is waited for comes only now
            total += int(future.wait()[0].item())
            for poller in pollers:
                poller.join()
    finally:
        sys.setswitchinterval(interval)
    return total


def _poll(work: Any) -> None:
    while not work.is_completed():
        pass


def test_threads_that_poll_a_work_and_one_that_asks_for_its_future_do_not_wait_for_each_other(
    ranks: Ranks,
) -> None:
    # BINDING-13: the one held the work's lock as it waited for the interpreter's, the others the other way round
    assert ranks.run(polls_and_futures) == [50, 0]


def message_beside(rank: Rank, how: str) -> list[Any]:
    import torch
    import torch.distributed as dist

    tensor, message = torch.ones(3), torch.full((100_000,), 7.0)
    got = torch.zeros(100_000)
    other = 1 - rank.rank
    if how == "send":
        if rank.rank == 0:
            work = dist.all_reduce(tensor, async_op=True)
            dist.send(message, other)
            work.wait()
            got = message
        else:
            dist.recv(got, other)
            dist.all_reduce(tensor)
    elif rank.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        dist.recv(got, other)
        dist.send(got, other)  # an answer to it, before the collective's end
        work.wait()
    else:
        dist.send(message, other)
        dist.recv(got, other)
        dist.all_reduce(tensor)
    return [*tensor.tolist(), got.sum().item()]


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=whole("gloo")), "phalanx"])
@pytest.mark.parametrize("how", ["send", "receive"])
def test_a_message_waits_for_no_collective(ranks: Ranks, backend: str, how: str) -> None:
    # GROUP-64: each rank waited for the other until the time-out
    assert ranks.run(message_beside, how, backend=backend, timeout=10) == [[2.0] * 3 + [700_000.0]] * 2


def called_by_a_handler(rank: Rank, how: str) -> Any:
    import signal

    import torch
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    if rank.rank == 1:
        store.wait(["handled"], timedelta(seconds=20))
        # Where the handler only calls, the interrupted call may still be answered before rank 0 gives it up.
        refused = pytest.raises(RuntimeError, match="rank 0")
        with refused if how == "destroy" else contextlib.suppress(RuntimeError):
            dist.all_reduce(torch.ones(1))
        return None
    said: list[str] = []

    def handle(_signal: int, _frame: Any) -> None:
        try:
            if how == "destroy":
                dist.destroy_process_group()
            else:
                dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            said.append(str(error))
            raise
        finally:
            store.set("handled", "1")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(RuntimeError) as raised:
            dist.all_reduce(torch.ones(1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    return str(raised.value), said


def test_a_handler_that_uses_the_group_that_it_interrupts_does_not_wait_for_itself(ranks: Ranks) -> None:
    # BINDING-17
    (text, _), _ = ranks.run(called_by_a_handler, "destroy")
    assert "closed the process group while a call of its own was waiting" in text
    (text, said), _ = ranks.run(called_by_a_handler, "call")
    assert "already in a call of the same process group" in text
    assert said == [text]
