"""How Python programs end that a rank's training code has started: gloo's threads need the interpreter, and have it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.backend_ranks import Rank, Ranks
from support.one_rank import RankRun, as_main, script
from support.places import PYTHON

pytestmark = pytest.mark.timeout(120)

# The thread of the first operation asks for the interpreter while the main thread, which doesn't yield it, ends.
CHILDREN = """
import multiprocessing, os, sys, tempfile

def child(folder):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    sys.setswitchinterval(100)
    dist.all_reduce(torch.ones(1_000_000), async_op=True)

def train():
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        spawn = multiprocessing.get_context("spawn").Process
        children = [spawn(target=child, args=(folder,)) for folder in (one, other)]
        for process in children:
            process.start()
        for process in children:
            process.join()
        return [process.exitcode for process in children]
"""


def test_processes_that_a_function_spawns_end_well_without_destroying_their_groups(
    run_rank: Callable[..., RankRun], tmp_path: Path
) -> None:
    end = run_rank(as_main(tmp_path, CHILDREN), GLOO_SOCKET_IFNAME="lo", timeout=100)
    assert (end.code, end.result, end.err) == (0, [0, 0], ""), f"RANK-43: {end.err}"


def test_processes_that_know_nothing_of_phalanx_end_well_where_it_is_installed(
    run_rank: Callable[..., RankRun], tmp_path: Path
) -> None:
    info = tmp_path / "phalanx-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: phalanx\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\nphalanx = phalanx.process_group.registration:install\n"
    )
    gives = "if __name__ == '__main__':\n    import phalanx\n    phalanx.set_result(train())\n"
    path = os.pathsep.join([str(PYTHON), str(tmp_path)])
    end = run_rank(script(tmp_path, CHILDREN + gives), PYTHONPATH=path, GLOO_SOCKET_IFNAME="lo", timeout=100)
    assert (end.code, end.result, end.err) == (0, [0, 0], ""), f"RANK-43: {end.err}"


def _leaves_an_operation(rank: Rank) -> None:
    import torch
    import torch.distributed as dist
    from phalanx.rank import child_ending

    store = dist.distributed_c10d._get_default_store()
    if rank.rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        child_ending.BUSY_SECONDS = 1e6
        child_ending._wait_for_threads()
        store.set("not waited for", "")
        work.wait()
    else:
        store.wait(["not waited for"])
        dist.all_reduce(torch.ones(1))


def test_an_operation_that_waits_for_a_peer_is_not_waited_for(ranks: Ranks) -> None:
    # RANK-43: else nobody would come to set the key
    ranks.run(_leaves_an_operation, backend="gloo")
