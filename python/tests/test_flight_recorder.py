"""A rank that waits in gloo or NCCL says in which collective operation it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest
from phalanx.rank.flight_recorder import describe
from support.one_rank import RankRun, sent

pytestmark = pytest.mark.timeout(120)

# A rank that a test starts by itself can't import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_an_operation_is_described_by_its_name_its_tensor_its_number_and_its_group() -> None:
    entry = {
        "profiling_name": "nccl:all_gather",
        "input_dtypes": ["Half", "Half"],
        "input_sizes": [[5], [6]],
        "process_group": ["0", "default_pg"],
        "is_p2p": False,
        "collective_seq_id": 7,
        "p2p_seq_id": 0,
        "time_created_ns": 1_000_000_000,
    }
    expected = "nccl:all_gather of Half [5] and 1 more, operation 7 of group default_pg, for 3 s"
    assert describe(entry, 4_000_000_000) == expected
    send = entry | {"is_p2p": True, "p2p_seq_id": 2, "input_dtypes": [], "process_group": ["4", ""]}
    assert describe(send, 0) == "nccl:all_gather, operation 2 of group 4, for 0 s"


def times_out(store: str) -> str:
    """Rank 0 is alone in an operation; the other rank is a process that makes another one, and waits."""
    import datetime
    import subprocess
    import sys

    import torch
    import torch.distributed as dist

    def group(rank: int) -> str:
        return (
            "import torch, torch.distributed as dist, time\n"
            f"dist.init_process_group('gloo', init_method='file://{store}', rank={rank}, world_size=2)\n"
            "dist.all_reduce(torch.ones(3))\n"
        )

    other = subprocess.Popen([sys.executable, "-c", f"{group(1)}time.sleep(60)"])
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=2)
        dist.all_reduce(torch.ones(3))
        try:
            work = dist.all_reduce(torch.ones(5, dtype=torch.float16), async_op=True)
            work.wait(datetime.timedelta(seconds=4))
        except RuntimeError as error:
            return str(error)
        return "it ended well"
    finally:
        other.kill()
        other.wait()


def test_a_rank_that_waits_in_gloo_says_in_which_operation(
    run_rank: Callable[..., RankRun], tmp_path: Path
) -> None:
    end = run_rank(sent(times_out, str(tmp_path / "store")))
    assert end.code == 0, end.err
    assert "it ended well" not in end.result
    doing = [beat["doing"] for beat in end.beats if beat["doing"]]
    expected = "gloo:all_reduce of Half [5], operation 2 of group default_pg, for "
    assert any(said.startswith(expected) for said in doing), f"RANK-11: {end.beats}"
