"""Several calls as one: lists of tensors, and works that are waited for together."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks
from support.tiers import whole

pytestmark = pytest.mark.timeout(120)
# What gloo does is what torch means.
BACKENDS = [pytest.param("gloo", marks=whole("gloo")), "phalanx"]


def coalesced_lists(rank: Rank) -> list[Any]:
    import torch
    import torch.distributed as dist

    mine = [torch.full((2,), rank.rank + 1.0), torch.full((3,), (rank.rank + 1) * 10.0)]
    every = [[torch.zeros(2), torch.zeros(3)] for _ in range(rank.size)]  # a list for each rank
    dist.all_gather_coalesced(every, mine)
    again = [[torch.zeros(2), torch.zeros(3)] for _ in range(rank.size)]
    work = dist.all_gather_coalesced(again, mine, async_op=True)
    assert work is not None
    work.wait()
    assert [[one.tolist() for one in each] for each in again] == [[one.tolist() for one in e] for e in every]
    return [[one.tolist() for one in each] for each in every]


@pytest.mark.parametrize("backend", BACKENDS)
def test_coalesced_lists_have_one_for_each_rank(ranks: Ranks, backend: str) -> None:
    expected = [[[r + 1.0] * 2, [(r + 1) * 10.0] * 3] for r in range(3)]
    assert ranks.run(coalesced_lists, backend=backend, size=3) == [expected] * 3


def coalesced_works(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    other = 1 - rank.rank
    message, column, total = torch.zeros(2), torch.ones(3, 2)[:, 0], torch.ones(2)
    group._start_coalescing(torch.device("cpu"))
    group.recv([message], other, 4)
    group.allreduce([column])  # through a copy, which is brought back
    group.allreduce([total])
    work = group._end_coalescing(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="timed out"):
        work.wait(timedelta(seconds=0.2))
    assert not work.is_completed()
    dist.barrier()
    group.send([torch.full((2,), float(rank.rank))], other, 4)
    work.wait()
    assert (message.tolist(), column.tolist(), total.tolist()) == ([float(other)] * 2, [2.0] * 3, [2.0] * 2)
    assert work.is_success()
    assert work.exception() is None
    group._start_coalescing(torch.device("cpu"))
    group.allreduce([column])
    group.allreduce([total])
    done = group._end_coalescing(torch.device("cpu")).get_future().wait()
    assert [one.tolist() for one in done] == [[4.0] * 3, [4.0] * 2]


def test_coalesced_calls_are_done_when_each_of_them_is(ranks: Ranks) -> None:
    # BACKEND-21
    ranks.run(coalesced_works)
