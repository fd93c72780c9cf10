"""Works by themselves, over a native work that the test plays; plans and spellings of operations by themselves."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiers import whole

pytestmark = pytest.mark.timeout(60)


class Done:
    """A work that is done; its callback runs on a thread of its own, as the native module's."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def wait(self, timeout: float | None) -> None: ...

    def is_done(self) -> bool:
        return True

    def failed(self) -> bool:
        return False

    def on_done(self, callback: Callable[[], object]) -> None:
        self.threads.append(threading.Thread(target=callback))
        self.threads[-1].start()


def test_a_wait_returns_when_the_results_are_in_place_even_if_another_thread_brings_them() -> None:
    # BACKEND-20: it returned while the callbacks' thread was still copying, and DDP read numbers that weren't there yet
    from phalanx.process_group.work import CollectiveWork

    began, may_end, copied = threading.Event(), threading.Event(), []

    def copy() -> None:
        began.set()
        may_end.wait(20)
        copied.append(True)

    native: Any = Done()
    work = CollectiveWork(native, [], copy)
    assert began.wait(20)
    assert not work.is_completed()
    threading.Timer(0.3, may_end.set).start()
    assert work.wait()
    assert copied == [True]
    assert work.is_completed()
    for thread in native.threads:
        thread.join(20)


ENDS_WHILE_A_CALLBACK_RUNS = """
import sys, time, torch, torch.distributed as dist, phalanx

rank, store, how, seconds = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
store = dist.FileStore(store, 2)
dist.init_process_group("phalanx", store=store, rank=rank, world_size=2)
if rank == 1:
    store.wait(["a callback is there"])  # so that the group's thread calls it, not who adds it

def slow(_):
    time.sleep(seconds)
    print("told", flush=True)

work = dist.all_reduce(torch.ones(1), async_op=True)
if rank == 0:
    work.get_future().then(slow)
    store.set("a callback is there", "")
work.wait()
if how == "destroyed":
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", [pytest.param("destroyed", marks=whole("another end")), "left at exit"])
@pytest.mark.parametrize(
    ("seconds", "said"), [pytest.param(0.5, "told\n", marks=whole("a shorter callback")), (3600, "")]
)
def test_a_program_that_ends_waits_for_callbacks_a_while(
    tmp_path: Path, how: str, seconds: float, said: str
) -> None:
    # BINDING-14: the callback came back to an interpreter that was gone, and the program ended by SIGABRT
    words = [sys.executable, "-c", ENDS_WHILE_A_CALLBACK_RUNS]
    others = [str(tmp_path / "store"), how, str(seconds)]
    with subprocess.Popen([*words, "1", *others]) as other:
        one = subprocess.run([*words, "0", *others], capture_output=True, text=True, timeout=50)
        assert other.wait(20) == 0
    assert (one.returncode, one.stdout) == (0, said), one.stderr
    assert ("a callback of a collective still runs" in one.stderr) == (not said)


LEAVES_AT_ONCE = """
import sys, torch, torch.distributed as dist, phalanx

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("phalanx", store=dist.FileStore(store, 2), rank=rank, world_size=2)
called = 0

def count(_):
    global called
    called += 1

for _ in range(200):
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    work.get_future().then(count)
    work.wait()
    group._get_backend(torch.device("cpu"))._native.leave()  # as at the program's exit
    dist.destroy_process_group(group)
print(called)
dist.destroy_process_group()
"""


def test_no_callback_is_lost_to_who_leaves_as_soon_as_the_result_is_there(tmp_path: Path) -> None:
    # BINDING-14: the waiting thread could leave before the callbacks were handed over, and they were dropped
    words = [sys.executable, "-c", LEAVES_AT_ONCE]
    with subprocess.Popen([*words, "1", str(tmp_path / "store")], stdout=subprocess.PIPE, text=True) as other:
        one = subprocess.run(
            [*words, "0", str(tmp_path / "store")], stdout=subprocess.PIPE, text=True, timeout=50
        )
        assert (one.stdout, other.communicate(timeout=20)[0]) == ("200\n", "200\n")


def test_a_plan_reads_and_writes_tensors_in_place_and_others_through_a_copy() -> None:
    import torch
    from phalanx.process_group.plan import Plan

    plan = Plan()
    whole = torch.arange(6.0)
    assert plan.target(whole) == plan.source(whole) == (whole.data_ptr(), 24), "BACKEND-8"
    assert plan.sources(list(whole.chunk(3))) == (whole.data_ptr(), 24), (
        "BACKEND-8: parts that lie side by side"
    )
    assert plan.finish is None
    column = torch.zeros(3, 2)[:, 0]
    address, size = plan.target(column)
    assert (address != column.data_ptr(), size) == (True, 12)
    plan.kept[-1].fill_(7)
    assert plan.finish is not None
    plan.finish()
    assert column.tolist() == [7, 7, 7], "BACKEND-9"


def test_an_operation_has_the_names_of_every_torch() -> None:
    from phalanx.process_group.operations import Operations

    assert Operations._allgather_base is Operations.all_gather_single, "BACKEND-5"
    assert Operations._reduce_scatter_base is Operations.reduce_scatter_single, "BACKEND-5"
    assert Operations.alltoall_base is Operations.all_to_all_single, "BACKEND-5"


def test_when_a_silent_rank_is_given_up_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from phalanx.process_group.membership import _cut_timeout
    from phalanx.rank import contract

    monkeypatch.delenv(contract.ENV_CUT_TIMEOUT, raising=False)
    assert _cut_timeout() is None, "as long as the kernel tries"
    monkeypatch.setenv(contract.ENV_CUT_TIMEOUT, "2.5")
    assert _cut_timeout() == 2.5
    for wrong in ("soon", "0", "-1", "inf", "nan"):
        monkeypatch.setenv(contract.ENV_CUT_TIMEOUT, wrong)
        with pytest.raises(ValueError, match=f"PHALANX_CUT_TIMEOUT_SECONDS is '{wrong}'"):
            _cut_timeout()
