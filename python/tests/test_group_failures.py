"""What ranks are told when one dies, calls something else, is late or gives up; and what can be seen from outside."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from phalanx.rank.error_record import is_peer_loss
from support.backend_ranks import Rank, Ranks

pytestmark = pytest.mark.timeout(120)

NOTICED_S, INTERRUPTED_S = 1.5, 0.1  # docs/collectives.md


def failure(call: Any) -> tuple[str, float]:
    began = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        call()
    return str(raised.value), time.monotonic() - began


def missing_a_peer(call: Any) -> tuple[str, float, bool]:
    began = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        call()
    return str(raised.value), time.monotonic() - began, is_peer_loss(raised.value)


def last_rank_dies(rank: Rank, how: str) -> Any:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functions

    tensor = torch.ones(1_000_000)
    dist.all_reduce(tensor)
    if how == "functional":
        functions.all_reduce(tensor, "sum", dist.group.WORLD) + 1  # the first imports much
    if rank.rank == rank.size - 1:
        os._exit(7)
    if how == "sync":
        return missing_a_peer(lambda: dist.all_reduce(tensor))
    if how == "async":
        return missing_a_peer(lambda: dist.all_reduce(tensor, async_op=True).wait())
    if how == "future":
        return missing_a_peer(lambda: dist.all_reduce(tensor, async_op=True).get_future().wait())
    if how == "receive":
        return missing_a_peer(lambda: dist.recv(tensor, rank.size - 1))
    if how == "functional":
        return missing_a_peer(lambda: functions.all_reduce(tensor, "sum", dist.group.WORLD) + 1)
    network = torch.nn.Linear(100, 100)
    # Building DDP and using it are both collectives with the dead.
    return missing_a_peer(lambda: torch.nn.parallel.DistributedDataParallel(network))


@pytest.mark.alone
@pytest.mark.parametrize("how", ["sync", "async", "future", "receive", "functional", "ddp"])
def test_a_rank_that_died_is_named_to_all_others(ranks: Ranks, how: str) -> None:
    answers = ranks.run(last_rank_dies, how, size=3, may_die=True)
    assert answers[2] is None
    for text, seconds, is_victim in answers[:2]:
        assert "rank 2" in text
        assert is_victim
        assert seconds < NOTICED_S


@pytest.mark.parametrize("how", ["sync", "future", "receive", "ddp"])
def test_gloos_error_for_a_rank_that_died_is_a_victims(ranks: Ranks, how: str) -> None:
    [(text, _, is_victim), _] = ranks.run(last_rank_dies, how, backend="gloo", size=2, may_die=True)
    assert is_victim, text


def test_no_wording_makes_a_victim() -> None:
    assert not is_peer_loss(RuntimeError("rank 2 died: its process 4711 has ended"))
    assert not is_peer_loss(RuntimeError("rank 2 has left the group"))


def member_of_a_subgroup_dies(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    group = dist.new_group([1, 2])
    if rank.rank == 0:
        return None
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=group)

    def receive() -> None:
        message: Any = dist.irecv(tensor, 3 - rank.rank, group, 5)
        message.wait(timedelta(milliseconds=50))

    missing = failure(receive)[0]
    if rank.rank == 2:
        os._exit(7)
    return missing, failure(lambda: dist.all_reduce(tensor, group=group))[0]


def test_a_subgroup_names_its_ranks_as_the_job_does(ranks: Ranks) -> None:
    _, (missing, text), dead = ranks.run(member_of_a_subgroup_dies, size=3, may_die=True)
    assert dead is None
    assert "rank 1, in " in text, "in all_reduce, or where the group had broken before it was called"
    assert "rank 2 died" in text
    assert "rank 0" not in text + missing


def dies_in_training(rank: Rank) -> Any:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(50, 50) for _ in range(5))), bucket_cap_mb=0.01
    )
    for _ in range(2):  # after the first, buckets are built anew
        wrapped(torch.ones(2, 50)).sum().backward()
    if rank.rank == 1:
        os._exit(7)

    def steps() -> None:
        for _ in range(3):
            wrapped(torch.ones(2, 50)).sum().backward()

    return missing_a_peer(steps)


@pytest.mark.alone
def test_ddp_raises_what_the_collective_failed_with(ranks: Ranks) -> None:
    # BACKEND-18
    (text, seconds, is_victim), _ = ranks.run(dies_in_training, may_die=True)
    assert is_victim, "though only the text comes through torch's futures"
    assert "rank 1" in text
    assert "all_reduce" in text
    assert seconds < NOTICED_S


def mismatched(rank: Rank, how: str) -> str:
    import torch
    import torch.distributed as dist

    if how == "size":
        return failure(lambda: dist.all_reduce(torch.ones(10 + rank.rank)))[0]
    if how == "type":
        dtype = torch.float32 if rank.rank else torch.int32
        return failure(lambda: dist.all_reduce(torch.ones(10, dtype=dtype)))[0]
    if how == "operation":
        tensor = torch.ones(10)
        return failure(lambda: dist.all_reduce(tensor) if rank.rank else dist.broadcast(tensor, 0))[0]
    op = dist.ReduceOp.MAX if rank.rank else dist.ReduceOp.SUM
    return failure(lambda: dist.all_reduce(torch.ones(10), op=op, async_op=True).wait())[0]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("size", ["40 bytes", "44 bytes"]),
        ("type", ["float32", "int32"]),
        ("operation", ["all_reduce", "broadcast"]),
        ("reduction", ["max", "sum"]),
    ],
)
def test_calls_that_differ_are_an_error_that_names_both(ranks: Ranks, how: str, words: list[str]) -> None:
    for text in ranks.run(mismatched, how):
        assert all(word in text for word in words), text


def late(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    if rank.rank == 1:
        store: Any = dist.distributed_c10d._get_default_store()
        store.wait(["seen"], timedelta(seconds=30))
        return failure(lambda: dist.all_reduce(torch.ones(1)))
    answer = failure(lambda: dist.all_reduce(torch.ones(1)))
    dist.distributed_c10d._get_default_store().set("seen", "1")
    return answer


def test_a_rank_that_is_late_is_a_timeout_that_names_it(ranks: Ranks) -> None:
    (text, seconds), (others, _) = ranks.run(late, timeout=1.0)
    assert "rank 1" in text
    assert 0.9 < seconds < 10
    assert "timed out after" in text
    assert " Timed out waiting 1000ms " in text, "what programs look for in gloo's errors"
    assert "rank 0" in others, "the late one hears of it"


def impatient(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(5)
    if rank.rank == 1:
        store.wait(["tired"], timedelta(seconds=30))
    work = dist.all_reduce(tensor, async_op=True)
    if rank.rank == 0:
        text, seconds = failure(lambda: work.wait(timedelta(milliseconds=200)))
        assert not work.is_completed()
        assert "wait timed out" in text
        assert 0.15 < seconds < 10
        store.set("tired", "1")
    assert work.wait(timedelta(seconds=20))
    assert tensor.tolist() == [2.0] * 5
    got = torch.zeros(1)

    def receive() -> None:
        message: Any = dist.irecv(got, 1 - rank.rank, tag=3)
        message.wait(timedelta(milliseconds=100))

    text, _ = failure(receive)
    assert "timed out" in text
    dist.all_reduce(tensor)
    return tensor.tolist()


def test_a_wait_may_end_before_its_work(ranks: Ranks) -> None:
    # BACKEND-19
    assert ranks.run(impatient) == [[4.0] * 5] * 2


class Interrupt:
    """Ctrl-C for the main thread, a moment after the call has begun that it breaks off."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without
        self._sent = 0.0

    def breaks_off(self, call: Any) -> float:
        """The seconds from the signal to the call's end."""

        def begin() -> None:
            threading.Timer(0.03, self._send).start()  # soon after a look, so that the next one is far
            call()

        with pytest.raises(KeyboardInterrupt):
            begin()
        return time.monotonic() - self._sent

    def _send(self) -> None:
        self._sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)


def interrupted(rank: Rank, how: str) -> Any:
    import torch
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    first, second = torch.ones(5), torch.ones(5)
    if rank.rank == 1:
        store.wait(["interrupted"], timedelta(seconds=30))
        dist.all_reduce(first)
        dist.all_reduce(second)
        dist.barrier()
        return first.tolist() + second.tolist()
    work = dist.all_reduce(first, async_op=True)
    # With "after another" it waits for its turn.
    seconds = Interrupt().breaks_off(work.wait if how == "wait" else lambda: dist.all_reduce(second))
    store.set("interrupted", "1")
    if how == "wait":
        dist.all_reduce(second)
    dist.barrier()  # after all of them
    return first.tolist() + second.tolist(), seconds


@pytest.mark.alone
@pytest.mark.parametrize("how", ["wait", "after another"])
def test_who_waits_can_be_interrupted_and_the_work_goes_on(ranks: Ranks, how: str) -> None:
    took = []
    for _ in range(3):
        (mine, seconds), theirs = ranks.run(interrupted, how)
        assert mine == theirs == [2.0] * 10
        took.append(seconds)
    assert min(took) <= INTERRUPTED_S, f"BINDING-12: {took}"


def interrupted_in_a_call(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    if rank.rank == 1:
        store.wait(["interrupted"], timedelta(seconds=30))
        return failure(lambda: dist.all_reduce(torch.ones(5)))[0]
    seconds = Interrupt().breaks_off(lambda: dist.all_reduce(torch.ones(5)))
    store.set("interrupted", "1")
    return seconds


@pytest.mark.alone
def test_a_synchronous_call_is_interrupted_and_the_others_are_told(ranks: Ranks) -> None:
    took = []
    for _ in range(3):
        seconds, text = ranks.run(interrupted_in_a_call)
        assert "rank 0" in text
        assert "interrupted: KeyboardInterrupt" in text
        took.append(seconds)
    assert min(took) <= INTERRUPTED_S, f"BINDING-9: {took}"


def monitored(rank: Rank) -> Any:
    import torch.distributed as dist

    dist.monitored_barrier(timeout=timedelta(seconds=20))
    if rank.rank == 2:
        return None
    return failure(lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=True))


def test_a_monitored_barrier_names_who_is_missing(ranks: Ranks) -> None:
    (first, seconds), (second, _), _ = ranks.run(monitored, size=3)
    assert "Rank 2 failed to pass monitoredBarrier in 500 ms" in first
    assert seconds < 10
    assert "Rank 1 successfully reached monitoredBarrier, but received errors while waiting" in second
    assert "for send/recv from rank 0: Rank 2 failed to pass monitoredBarrier" in second


def alone_at_a_monitored_barrier(rank: Rank) -> Any:
    import torch.distributed as dist

    barrier = dist.group.WORLD.monitored_barrier  # type: ignore[union-attr]
    if rank.rank == 0:
        return [
            failure(lambda: barrier(timedelta(0)))[0],
            failure(lambda: barrier(timedelta(seconds=0.1), wait_all_ranks=True))[0],
        ]
    return None


def test_a_monitored_barrier_may_have_no_time_and_may_wait_for_all(ranks: Ranks) -> None:
    (none, every), _, _ = ranks.run(alone_at_a_monitored_barrier, size=3)
    assert "Rank 0 timed out in monitoredBarrier" in none
    assert "Ranks 1, 2 failed to pass monitoredBarrier" in every


def aborted(rank: Rank) -> Any:
    import threading

    import torch
    import torch.distributed as dist

    if rank.rank == 1:
        return failure(lambda: dist.all_reduce(torch.ones(1)))
    group: Any = dist.group.WORLD
    threading.Timer(0.3, group.abort).start()
    got = failure(lambda: dist.recv(torch.ones(1), 1))
    return got


def test_an_abort_ends_what_runs_on_every_rank(ranks: Ranks) -> None:
    for text, seconds in ranks.run(aborted):
        assert "rank 0 aborted" in text
        assert seconds < 10


def destroyed(rank: Rank) -> str:
    import torch
    import torch.distributed as dist

    part = dist.new_group([0, 1])
    group: Any = part
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, group=part, async_op=True)
    dist.destroy_process_group(part)
    work.wait()  # what was under way is done
    assert tensor.tolist() == [2.0] * 3
    dist.barrier()
    return failure(lambda: group.allreduce([tensor]).wait())[0]


def test_a_destroyed_group_finishes_and_then_refuses(ranks: Ranks) -> None:
    for text in ranks.run(destroyed):
        assert "closed" in text


def seen_from_outside(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist
    from phalanx._native import read_activity

    store: Any = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank.rank == 0:
        # of the other rank, which waits for this one
        directory = rank.directory / "1"
        (path,) = [entry for entry in directory.iterdir() if entry.name != "groups-key"]
        end = time.monotonic() + 20
        while not (seen := read_activity(str(path)))[5] or not seen[3].startswith("all_reduce"):
            assert time.monotonic() < end
            time.sleep(0.01)
        dist.all_reduce(torch.ones(250))
        store.set("read", "1")
        return seen
    assert rank.rank == 1
    dist.all_reduce(torch.ones(250))
    return None


def by_rank(rank: Rank) -> Any:
    """Each with a directory of its own, as the node gives it."""
    import torch.distributed as dist

    directory = rank.directory / str(rank.rank)
    directory.mkdir(exist_ok=True)
    (directory / "groups-key").write_bytes(bytes(32))
    os.environ["PHALANX_RANK_DIR"] = str(directory)
    try:
        dist.init_process_group("phalanx", timeout=timedelta(seconds=20))
        try:
            return seen_from_outside(rank)
        finally:
            dist.destroy_process_group()
    finally:
        del os.environ["PHALANX_RANK_DIR"]


def test_what_a_rank_is_doing_can_be_read_by_others(ranks: Ranks, tmp_path: Path) -> None:
    began = time.monotonic()
    (me, size, sequence, call, count, is_running, seconds, seconds_of_all), _ = ranks.run(
        by_rank, backend="none", directory=tmp_path
    )
    assert (me, size, count, is_running) == (1, 2, 1000, True)
    assert call == "all_reduce(sum, float32, 1000 bytes)"
    assert sequence >= 2
    assert 0 <= seconds <= seconds_of_all <= time.monotonic() - began
