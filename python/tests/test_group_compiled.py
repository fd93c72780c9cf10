"""Compiled models and functions on our backend: what they compute is what gloo has them compute."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks
from support.tiers import whole

pytestmark = pytest.mark.timeout(240)
STEPS = 4


@contextlib.contextmanager
def fresh(**settings: Any) -> Iterator[None]:
    """Nothing that was compiled before counts, nor will this afterwards: ranks outlive tests."""
    import torch._dynamo

    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(**settings):
            yield
    finally:
        torch._dynamo.reset()


def steps(rank: Rank, network: Any) -> list[float]:
    """Losses; DDP rebuilds its buckets after the first backward pass, and has the second's order from then on."""
    import torch

    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        inputs = torch.arange(24.0).reshape(3, 8).sin() * (rank.rank + step + 1)
        optimizer.zero_grad()
        loss = network(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def two_layers() -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2))


def ddp(rank: Rank, backend: str) -> list[float]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    with fresh():
        return steps(rank, torch.compile(DistributedDataParallel(two_layers()), backend=backend))


def compiled_inside_ddp(rank: Rank, backend: str) -> list[float]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    with fresh():
        return steps(rank, DistributedDataParallel(torch.compile(two_layers(), backend=backend)))


def ddp_with_hook(rank: Rank, backend: str) -> list[float]:
    import phalanx
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(two_layers())
    hook = phalanx.average_hook if rank.backend == "phalanx" else default_hooks.allreduce_hook
    wrapped.register_comm_hook(None, hook)
    with fresh():
        return steps(rank, torch.compile(wrapped, backend=backend))


def compiled_autograd(rank: Rank, backend: str) -> list[float]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    with fresh(compiled_autograd=True, optimize_ddp="python_reducer"):
        return steps(rank, torch.compile(DistributedDataParallel(two_layers()), backend=backend))


def sharded(rank: Rank, backend: str) -> list[float]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    fsdp: Any = pytest.importorskip("torch.distributed.fsdp")
    network = two_layers()
    with fresh():
        fsdp.fully_shard(network, mesh=init_device_mesh("cpu", (rank.size,)))
        return steps(rank, torch.compile(network, backend=backend))


@pytest.mark.parametrize(
    "train",
    [
        ddp,
        *(
            pytest.param(train, marks=whole("another wrapper"))
            for train in (compiled_inside_ddp, ddp_with_hook, compiled_autograd, sharded)
        ),
    ],
)
def test_a_compiled_model_has_the_losses_of_gloo(ranks: Ranks, train: Callable[..., list[float]]) -> None:
    # BACKEND-16
    gloos = ranks.run(train, "aot_eager", backend="gloo")
    ours = ranks.run(train, "aot_eager")
    for mine, theirs in zip(ours, gloos, strict=True):
        assert len(mine) == STEPS
        assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@whole("another compiler")
def test_inductors_code_has_the_losses_of_gloo(ranks: Ranks) -> None:
    # BACKEND-16
    gloos = ranks.run(ddp, "inductor", backend="gloo")
    for mine, theirs in zip(ranks.run(ddp, "inductor"), gloos, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


def collectives(rank: Rank) -> list[Any]:
    import torch
    import torch.distributed as dist

    group = dist.group.WORLD

    def moved(numbers: Any) -> Any:
        summed = numbers * 2
        dist.all_reduce(summed, group=group)
        every = torch.empty(rank.size * 4)
        dist.all_gather_into_tensor(every, numbers, group=group)
        part = torch.empty(2)
        dist.reduce_scatter_tensor(part, numbers, group=group)
        swapped = torch.empty(4)
        dist.all_to_all_single(swapped, numbers, group=group)
        return torch.cat([summed, every, part, swapped]) + dist.get_rank() + dist.get_world_size(group)

    def broken(numbers: Any) -> Any:
        summed = numbers + 1
        dist.broadcast(summed, src=1)
        dist.barrier()
        work = dist.all_reduce(summed, async_op=True)
        work.wait()
        return summed + 1

    numbers = torch.arange(4.0) + rank.rank
    with fresh():
        expected = [moved(numbers), broken(numbers)]
        got = [
            torch.compile(moved, backend="aot_eager", fullgraph=True)(numbers),
            torch.compile(broken, backend="eager")(numbers),
        ]
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    return [one.tolist() for one in got]


def test_a_compiled_function_may_call_collectives(ranks: Ranks) -> None:
    # BACKEND-16
    assert ranks.run(collectives) == ranks.run(collectives, backend="gloo")


def test_who_compiles_nothing_has_no_compiler_imported() -> None:
    # BACKEND-17
    program = (
        "import sys, torch, torch.distributed as dist, phalanx\n"
        "dist.init_process_group('phalanx', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(1))\n"
        "dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()\n"
        "dist.destroy_process_group()\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
