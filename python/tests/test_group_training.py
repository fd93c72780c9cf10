"""Whole training features on the backend: what torch's own wrappers need, with gloo's losses for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks
from support.tiers import whole

pytestmark = pytest.mark.timeout(180)
STEPS = 8


def model(seed: int = 0) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(20, 64), nn.Tanh(), nn.BatchNorm1d(64), nn.Linear(64, 32), nn.Linear(32, 3)
    )


def batches(rank: Rank, count: int = STEPS) -> list[tuple[Any, Any]]:
    import torch

    made = torch.Generator().manual_seed(17 + rank.rank)
    return [
        (torch.randn(16, 20, generator=made), torch.randint(0, 3, (16,), generator=made))
        for _ in range(count)
    ]


def trained(rank: Rank, network: Any, steps: int = STEPS, **options: Any) -> list[float]:
    """Losses of some steps of DDP, averaged over the ranks."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(network, bucket_cap_mb=0.005, **options)  # several buckets
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches(rank, steps):
        loss = torch.nn.functional.cross_entropy(wrapped(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / rank.size)
    check_replicas(rank, network)
    return losses


def losses_of(network: Any, optimizer: Any, data: Any) -> list[float]:
    """Takes a step a batch."""
    import torch

    losses = []
    for inputs, targets in data:
        loss = torch.nn.functional.cross_entropy(network(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def check_replicas(rank: Rank, network: Any) -> None:
    import torch
    import torch.distributed as dist

    flat = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    every = [torch.empty_like(flat) for _ in range(rank.size)]
    dist.all_gather(every, flat)
    assert all(torch.equal(one, flat) for one in every), "replicas are equal to the bit"


def plain(rank: Rank) -> list[float]:
    return trained(rank, model())


def bucket_views(rank: Rank) -> list[float]:
    return trained(rank, model(), gradient_as_bucket_view=True, static_graph=True)


def sync_batch_norm(rank: Rank) -> list[float]:
    import torch
    import torch.distributed as dist

    assert dist.is_initialized()
    network = model()
    network[2] = torch.nn.LayerNorm(64)
    return trained(rank, network, broadcast_buffers=False)


def unused_parameters(rank: Rank) -> list[float]:
    import torch

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.left, self.right = model(), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.calls = 0

        def forward(self, inputs: Any) -> Any:
            self.calls += 1
            branch = self.left if (self.calls + rank.rank) % 2 else self.right
            return branch(self.trunk(inputs))

    torch.manual_seed(0)
    return trained(rank, Branches(), find_unused_parameters=True)


def accumulated(rank: Rank) -> list[float]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    network = model()
    wrapped = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses: list[float] = []
    for number, batch in enumerate(batches(rank)):
        if number % 2 == 0:
            with wrapped.no_sync():
                torch.nn.functional.cross_entropy(wrapped(batch[0]), batch[1]).backward()
        else:
            losses += losses_of(wrapped, optimizer, [batch])
    check_replicas(rank, network)
    return losses


def uneven(rank: Rank) -> list[float]:
    import torch
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    network = model()
    network[2] = torch.nn.Identity()
    wrapped = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with Join([wrapped]):
        losses = losses_of(wrapped, optimizer, batches(rank, STEPS if rank.rank else STEPS // 2))
    check_replicas(rank, network)
    return losses


def compressed(rank: Rank, name: str) -> list[float]:
    import phalanx
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    network = model()
    wrapped = DistributedDataParallel(network)
    if name == "powerSGD":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=2
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif name == "average":
        wrapped.register_comm_hook(None, phalanx.average_hook)
    else:
        wrapped.register_comm_hook(None, getattr(default_hooks, name))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses = losses_of(wrapped, optimizer, batches(rank))
    check_replicas(rank, network)
    return losses


def sharded(rank: Rank) -> list[float]:
    """FSDP2, with a checkpoint in the middle that each rank writes its part of."""
    import torch
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (rank.size,))

    def shards(seed: int) -> Any:
        network = model(seed)
        network[2] = torch.nn.Identity()
        for layer in network:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        sharded = fully_shard(network, mesh=mesh)
        if hasattr(sharded, "set_allocate_memory_from_process_group_for_comm"):  # torch 2.9 and later
            sharded.set_allocate_memory_from_process_group_for_comm(True)
        return sharded

    network = shards(0)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    losses = []
    for number, (inputs, targets) in enumerate(batches(rank)):
        if number == STEPS // 2:
            state = get_model_state_dict(network)
            checkpoint.save(state, checkpoint_id=str(rank.directory / rank.backend))
            other = shards(1)
            loaded = get_model_state_dict(other)
            checkpoint.load(loaded, checkpoint_id=str(rank.directory / rank.backend))
            set_model_state_dict(other, loaded)
            pairs = zip(network.parameters(), other.parameters(), strict=True)
            assert all(torch.equal(a.to_local(), b.to_local()) for a, b in pairs)
            waiting = checkpoint.async_save(
                state, checkpoint_id=str(rank.directory / f"{rank.backend}-async")
            )
            waiting.result()
        loss = torch.nn.functional.cross_entropy(network(inputs), targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        assert norm.full_tensor().item() > 0
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def zero(rank: Rank) -> list[float]:
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    network = model()
    wrapped = DistributedDataParallel(network)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.01)
    losses = losses_of(wrapped, optimizer, batches(rank))
    optimizer.consolidate_state_dict(to=0)
    if rank.rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(network.parameters()))
    check_replicas(rank, network)
    return losses


def sampled(rank: Rank) -> list[float]:
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    made = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(50, 20, generator=made), torch.randint(0, 3, (50,), generator=made))
    sampler: Any = DistributedSampler(data, shuffle=True, seed=5)
    loader = DataLoader(data, batch_size=5, sampler=sampler)
    network = model()
    wrapped = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses: list[float] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        losses += losses_of(wrapped, optimizer, loader)
    check_replicas(rank, network)
    return losses


def bf16_compress(rank: Rank) -> list[float]:
    return compressed(rank, "bf16_compress_hook")


def fp16_compress(rank: Rank) -> list[float]:
    return compressed(rank, "fp16_compress_hook")


def allreduce_hook(rank: Rank) -> list[float]:
    return compressed(rank, "allreduce_hook")


def average_hook(rank: Rank) -> list[float]:
    return compressed(rank, "average") if rank.backend == "phalanx" else allreduce_hook(rank)


def power_sgd(rank: Rank) -> list[float]:
    return compressed(rank, "powerSGD")


def sparse_gradients(rank: Rank) -> list[float]:
    import torch
    from torch import nn

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(50, 16, sparse=True, mode="sum")
            self.last = nn.Linear(16, 3)

        def forward(self, inputs: Any) -> Any:
            return self.last(self.table((inputs.abs() * 10).long().clamp(max=49)))

    torch.manual_seed(0)
    return trained(rank, Embedded())


@pytest.mark.parametrize(
    "train",
    [
        sparse_gradients,
        *(plain, bucket_views, sync_batch_norm, unused_parameters, accumulated, uneven, allreduce_hook),
        *(average_hook, bf16_compress, fp16_compress, power_sgd, sharded, zero, sampled),
    ],
)
@pytest.mark.parametrize("size", [pytest.param(2, marks=whole("two ranks")), 3])
def test_losses_are_those_of_gloo(ranks: Ranks, tmp_path: Path, train: Any, size: int) -> None:
    ours = ranks.run(train, size=size, directory=tmp_path)
    gloos = ranks.run(train, size=size, directory=tmp_path, backend="gloo")
    # only the order of summation differs; rounding to 16 bits makes more of it
    tolerance = 2e-2 if train in (bf16_compress, fp16_compress, power_sgd) else 1e-4
    for mine, theirs in zip(ours, gloos, strict=True):
        assert len(mine) > 3
        assert mine == pytest.approx(theirs, rel=tolerance)
    if size == 2:
        assert ranks.run(train, size=size, directory=tmp_path / "again") == ours, (
            "equal to the bit, run after run"
        )


def accelerated(rank: Rank) -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import broadcast_object_list, gather_object, reduce

    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == rank.size
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network, optimizer = accelerator.prepare(network, optimizer)
    for inputs, targets in batches(rank, 3):
        accelerator.backward(torch.nn.functional.cross_entropy(network(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    gathered = accelerator.gather(torch.tensor([rank.rank, 10 + rank.rank]))
    assert gathered.tolist() == [n for r in range(rank.size) for n in (r, 10 + r)]
    assert gather_object([rank.rank]) == list(range(rank.size))
    assert reduce(torch.tensor(2.0), "sum").item() == 2.0 * rank.size
    padded = accelerator.pad_across_processes(torch.ones(rank.rank + 1))
    assert padded.shape == (rank.size,)
    assert broadcast_object_list([rank.rank]) == [0]
    accelerator.wait_for_everyone()


def test_accelerate_gathers(ranks: Ranks) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    ranks.run(accelerated, size=2)
