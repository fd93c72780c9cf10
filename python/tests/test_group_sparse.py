"""All-reduce of sparse tensors, on gloo and on our backend alike."""

from __future__ import annotations

from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks
from support.tiers import whole

pytestmark = pytest.mark.timeout(120)
# What gloo does is what torch means.
BACKENDS = [pytest.param("gloo", marks=whole("gloo")), "phalanx"]


def sparse_sums(rank: Rank) -> list[Any]:
    import torch
    import torch.distributed as dist

    me, n = rank.rank, rank.size
    dense = torch.zeros(6, 4)
    dense[me], dense[5, 1] = me + 1.0, 1.0
    expected = torch.zeros(6, 4)
    for r in range(n):
        expected[r] += r + 1.0
    expected[5, 1] += n
    found = []
    for mine in (dense.to_sparse(), dense.to_sparse(1), dense.to(torch.float64).to_sparse()):
        dist.all_reduce(mine)
        assert torch.equal(mine.to_dense(), expected.to(mine.dtype))
        assert mine.is_coalesced()
        found.append(mine._nnz())
    thirds = torch.full((2,), (1.0, 1e8, -1e8)[me]).div(3).to_sparse()  # the order of sums shows
    dist.all_reduce(thirds)
    every = [torch.empty(2) for _ in range(n)]
    dist.all_gather(every, thirds.to_dense())
    assert all(torch.equal(one, every[0]) for one in every), "BACKEND-14"
    # entries that stand twice, none at all, and whole numbers
    twice = torch.sparse_coo_tensor(torch.tensor([[1, 1, me]]), torch.tensor([1, 2, 3]), (4,))
    work = dist.all_reduce(twice, async_op=True)
    assert work is not None
    work.wait()
    whole = torch.tensor([0, 3 * n, 0, 0])
    for r in range(n):
        whole[r] += 3
    assert torch.equal(twice.to_dense(), whole)
    none = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (4,))
    dist.all_reduce(none)
    assert none.to_dense().tolist() == [0.0] * 4
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_tensors_have_sums(ranks: Ranks, backend: str) -> None:
    assert ranks.run(sparse_sums, backend=backend, size=3) == [[13, 4, 13]] * 3


def sparse_tensors_that_differ(rank: Rank) -> str:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(2 + rank.rank).to_sparse()
    with pytest.raises(RuntimeError) as raised:
        dist.all_reduce(tensor)
    with pytest.raises(RuntimeError, match="can't be added up"):
        dist.all_reduce(tensor, async_op=True).wait()  # type: ignore[union-attr]
    dist.barrier()
    return str(raised.value)


def test_sparse_tensors_that_differ_are_an_error_on_every_rank(ranks: Ranks) -> None:
    # BACKEND-15
    one, other = ranks.run(sparse_tensors_that_differ)
    assert one == other
    assert "torch.float32 of size [2], 1 sparse; torch.float32 of size [3], 1 sparse" in one
