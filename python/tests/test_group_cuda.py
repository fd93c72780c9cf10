"""CUDA tensors: staged through pinned memory, or NCCL's where a map of backends says so. Without a GPU it skips."""

from __future__ import annotations

from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks, shared

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that torch can use")
    return shared()


def staged(rank: Rank) -> None:
    """Both ranks on one GPU, which NCCL refuses."""
    import torch
    import torch.distributed as dist

    me, n = rank.rank, rank.size
    torch.cuda.set_device(0)
    tensor = torch.full((3, 1000), float(me), device="cuda")
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [1.0]
    dist.all_reduce(tensor.t()[5:], async_op=True).wait()
    assert tensor[:, 5:].unique().tolist() == [2.0]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.full((1 << 20,), float(me), device="cuda") * 3
        future = dist.all_reduce(late, async_op=True).get_future()
        assert future.wait()[0].unique().tolist() == [3.0]
    every = [torch.empty(2, device="cuda") for _ in range(n)]
    dist.all_gather(every, torch.full((2,), float(me), device="cuda"))
    assert [one.tolist() for one in every] == [[float(r)] * 2 for r in range(n)]
    whole = torch.empty(4, device="cuda")
    dist.all_gather_into_tensor(whole, torch.full((2,), float(me), device="cuda"))
    assert whole.tolist() == [0.0, 0.0, 1.0, 1.0]
    part = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(part, whole)
    assert part.tolist() == [2.0 * me] * 2
    got = torch.empty(2, device="cuda")
    requests = [dist.irecv(got, 1 - me), dist.isend(part, 1 - me)]
    for request in requests:
        assert request is not None
        request.wait()
    assert got.tolist() == [2.0 * (1 - me)] * 2
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100).cuda())
    network(torch.full((4, 100), float(me), device="cuda")).sum().backward()
    assert network.module.weight.grad.unique().tolist() == [2.0]


def test_cuda_tensors_go_through_pinned_memory(ranks: Ranks) -> None:
    ranks.run(staged, timeout=60)


def of_nccl(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank.rank)
    group: Any = dist.group.WORLD
    tensor = torch.full((1000,), 2.0, device="cuda")
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    assert tensor.unique().tolist() == [2.0 * rank.size**2]
    assert isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupNCCL)
    onto_cpu = torch.ones(3)
    dist.all_reduce(onto_cpu)
    assert onto_cpu.tolist() == [float(rank.size)] * 3


@pytest.mark.parametrize("size", [1, 2])
def test_a_map_gives_cuda_tensors_to_nccl(ranks: Ranks, size: int) -> None:
    # BACKEND-1
    import torch

    if torch.cuda.device_count() < size:
        pytest.skip(f"this machine has {torch.cuda.device_count()} GPUs, NCCL needs one a rank")
    ranks.run(of_nccl, size=size, backend="cpu:phalanx,cuda:nccl", timeout=60)
