"""Messages of ranks that leave, and what it costs to wait for one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks

pytestmark = pytest.mark.timeout(120)

ELEMENTS = 1 << 20  # more than any buffer on the way holds, in bytes
BUSY_S = 7.0
FEW_SWITCHES = 40  # in two seconds; one that looked each millisecond would be at 2,000


def takes_late(rank: Rank) -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.full((ELEMENTS,), 3, dtype=torch.uint8)
    if rank.rank == 0:
        dist.send(tensor, 1)
        dist.destroy_process_group()
        return 0.0
    time.sleep(BUSY_S)  # it computes
    got = torch.zeros(ELEMENTS, dtype=torch.uint8)
    dist.recv(got, 0)
    return float(got.sum(dtype=torch.int64))


def test_what_was_sent_before_the_group_was_destroyed_arrives_however_late_it_is_taken(ranks: Ranks) -> None:
    # GROUP-65
    assert ranks.run(takes_late) == [0.0, 3.0 * ELEMENTS]


def goes_on_without(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    last, other, answer = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    if rank.rank == 2:
        store.wait(["waits"], timedelta(seconds=20))
        dist.send(torch.full((1,), 7.0), 0, tag=1)
        dist.destroy_process_group()
        return None
    if rank.rank == 1:
        store.wait(["knows"], timedelta(seconds=20))
        dist.send(torch.full((1,), 8.0), 0, tag=3)
        dist.recv(answer, 0, tag=4)
        return answer.item()
    works: list[Any] = [
        dist.irecv(last, 2, tag=1),
        dist.irecv(torch.zeros(1), 2, tag=2),
        dist.irecv(other, 1, tag=3),
    ]
    store.set("waits", "1")
    works[0].wait()
    said = []
    for call in (works[1].wait, lambda: dist.recv(torch.zeros(1), 2, tag=1), lambda: dist.send(other, 2)):
        with pytest.raises(RuntimeError) as raised:
            call()
        said.append(str(raised.value))
    store.set("knows", "1")
    works[2].wait()
    dist.send(other + 1, 1, tag=4)
    return last.item(), other.item(), said


def test_messages_of_a_rank_that_has_left_are_not_waited_for_and_those_of_others_go_on(ranks: Ranks) -> None:
    # GROUP-66, BINDING-8
    (last, other, said), answer, _ = ranks.run(goes_on_without, size=3)
    assert (last, other, answer) == (7.0, 8.0, 9.0), "what it sent before it left is received"
    assert len(said) == 3
    for text in said:
        assert "rank 2 has left the group" in text


def switches(names: tuple[str, ...]) -> int:
    """How often threads of this process with these names have gone to sleep."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        if task.joinpath("comm").read_text().startswith(names):
            lines = task.joinpath("status").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
    return found


def waits_for_long(rank: Rank) -> int:
    import torch
    import torch.distributed as dist

    dist.barrier()
    if rank.rank == 1:
        time.sleep(2)
        dist.send(torch.ones(1), 0)
        return 0
    got = torch.zeros(1)
    work: Any = dist.irecv(got, 1)
    before = switches(("phalanx",))
    time.sleep(1.9)
    count = switches(("phalanx",)) - before
    work.wait()
    assert got.item() == 1.0
    return count


def test_a_message_that_is_waited_for_leaves_its_thread_asleep(ranks: Ranks) -> None:
    # BINDING-7, GROUP-67
    assert ranks.run(waits_for_long)[0] < FEW_SWITCHES


def threads(rank: Rank) -> list[int]:
    import gc

    import torch
    import torch.distributed as dist

    def count() -> int:
        found = 0
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                found += task.joinpath("comm").read_text().startswith("phalanx-message")
        return found

    def wait_for(some: int) -> int:
        gc.collect()  # a group and what it has for other devices name each other
        end = time.monotonic() + 20
        while count() != some and time.monotonic() < end:
            time.sleep(0.01)
        return count()

    counts = [wait_for(0)]  # of groups that earlier tests had here
    got, other = torch.zeros(1), 1 - rank.rank
    dist.send(torch.ones(1), other)
    dist.barrier()
    dist.recv(got, other)
    counts.append(count())
    work: Any = dist.irecv(got, other, tag=1)
    counts.append(wait_for(1))  # it gives itself its name
    dist.barrier()
    dist.send(torch.ones(1), other, tag=1)
    work.wait()
    dist.destroy_process_group()
    return [*counts, wait_for(0)]


def test_a_group_has_a_thread_for_messages_only_once_one_is_waited_for(ranks: Ranks) -> None:
    # BINDING-6
    assert ranks.run(threads) == [[0, 0, 1, 0]] * 2


def leaves_with_a_message(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank.rank == 1:
        store.wait(["left"], timedelta(seconds=20))
        return None
    dist.send(torch.zeros(ELEMENTS, dtype=torch.uint8), 1)
    with pytest.raises(RuntimeError) as raised:
        dist.destroy_process_group()
    store.set("left", "1")
    dist.destroy_process_group()
    assert not dist.is_initialized()
    return str(raised.value), getattr(raised.value, "kind", None)


def test_who_leaves_while_nobody_takes_its_message_is_told_who_did_not(ranks: Ranks) -> None:
    # GROUP-41
    (text, kind), _ = ranks.run(leaves_with_a_message, timeout=1.0)
    assert "rank 1 has received nothing of a message of 1048576 bytes for 1." in text
    assert kind == "timeout"


ENDS = """
import sys, time
from datetime import timedelta
from pathlib import Path
import phalanx, torch, torch.distributed as dist

rank, directory = int(sys.argv[1]), Path(sys.argv[2])
meet = f"file://{directory}/store"
dist.init_process_group("phalanx", init_method=meet, rank=rank, world_size=2, timeout=timedelta(seconds=1.5))
dist.barrier()
if rank == 0:
    dist.send(torch.zeros(1 << 20, dtype=torch.uint8), 1)
else:
    end = time.monotonic() + 60
    while not (directory / "over").exists() and time.monotonic() < end:
        time.sleep(0.01)
"""


def test_a_program_that_ends_with_a_message_that_nobody_took_says_so(tmp_path: Path) -> None:
    # GROUP-41
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    commands = [[sys.executable, str(script), str(rank), str(tmp_path)] for rank in range(2)]
    other = subprocess.Popen(commands[1])
    try:
        ended = subprocess.run(commands[0], stderr=subprocess.PIPE, text=True, timeout=90)
    finally:
        (tmp_path / "over").write_text("")
        assert other.wait(60) == 0
    assert "rank 1 has received nothing of a message of 1048576 bytes" in ended.stderr
