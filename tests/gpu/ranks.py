"""What ranks of the checks do: functions that travel by name. On a GPU where they see one, else on the CPU."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

STEPS = 5
# A rank may differ from a process on the CPU by rounding: other kernels, and sums in another order.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def losses(backend: str | None, compiles: bool = False) -> list[float]:
    """The mean losses of a small net that learns, by DDP over `backend`; None for one process without it.

    All ranks together have the same eight rows a step, however many ranks they are.
    """
    torch.manual_seed(1)
    net: Any = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    at, me, world = torch.device("cpu"), 0, 1
    if backend is not None:
        dist.init_process_group(backend)
        at, me, world = device(), dist.get_rank(), dist.get_world_size()
        net = torch.nn.parallel.DistributedDataParallel(net.to(at))
    if compiles:
        net = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(2)
    seen = []
    for _ in range(STEPS):
        rows = torch.randn(8, 16, generator=generator)[me::world].to(at)
        loss = (net(rows) - rows.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        if world > 1:
            dist.all_reduce(mean)
            mean = mean / world
        seen.append(mean.item())
    if backend is not None:
        dist.destroy_process_group()
    return seen


# Exact for two ranks in each of these types.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8")


def operations() -> int:
    """Every collective operation of `phalanx` on this device's tensors, in every type; how many were right."""
    dist.init_process_group("phalanx")
    me, world, at = dist.get_rank(), dist.get_world_size(), device()
    done = 0

    def right(got: torch.Tensor, wanted: list[float], what: str) -> None:
        nonlocal done
        assert got.device.type == at.type, what
        assert got.double().flatten().tolist() == wanted, f"{what}: {got.tolist()} and not {wanted}"
        done += 1

    every = list(range(world))
    for name in DTYPES:
        kind = getattr(torch, name)

        def of(*values: float, kind: torch.dtype = kind) -> torch.Tensor:
            return torch.tensor(values, dtype=kind, device=at)

        total = float(sum(r + 1 for r in every))
        for op, wanted in (
            (dist.ReduceOp.SUM, total),
            (dist.ReduceOp.MAX, float(world)),
            (dist.ReduceOp.MIN, 1.0),
            (dist.ReduceOp.PRODUCT, float(torch.tensor([r + 1 for r in every]).prod())),
        ):
            tensor = of(me + 1, me + 1)
            dist.all_reduce(tensor, op)
            right(tensor, [wanted] * 2, f"all_reduce {op} {name}")
        if kind.is_floating_point:
            tensor = of(me, me)
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            right(tensor, [(world - 1) / 2] * 2, f"all_reduce AVG {name}")
        tensor = of(me + 5)
        dist.broadcast(tensor, world - 1)
        right(tensor, [world + 4.0], f"broadcast {name}")
        tensor = of(me + 1)
        dist.reduce(tensor, 0)
        if me == 0:
            right(tensor, [total], f"reduce {name}")
        parts = [of(0) for _ in every]
        dist.all_gather(parts, of(me))
        right(torch.cat(parts), [float(r) for r in every], f"all_gather {name}")
        whole = of(*[0] * world)
        dist.all_gather_into_tensor(whole, of(me))
        right(whole, [float(r) for r in every], f"all_gather_into_tensor {name}")
        part = of(0)
        dist.reduce_scatter_tensor(part, of(*[r + me for r in every]))
        right(part, [float(sum(r + me for r in every))], f"reduce_scatter_tensor {name}")
        dist.reduce_scatter(part, [of(r) for r in every])
        right(part, [float(me * world)], f"reduce_scatter {name}")
        swapped = of(*[0] * world)
        dist.all_to_all_single(swapped, of(*[10 * me + r for r in every]))
        right(swapped, [float(10 * r + me) for r in every], f"all_to_all_single {name}")
        dist.gather(of(me), parts if me == 0 else None, 0)
        dist.scatter(part, [of(r + 3) for r in every] if me == 0 else None, 0)
        right(part, [me + 3.0], f"scatter {name}")
        got = of(0)
        requests = [dist.irecv(got, (me - 1) % world), dist.isend(of(me), (me + 1) % world)]
        for request in requests:
            assert request is not None
            request.wait()
        right(got, [float((me - 1) % world)], f"isend and irecv {name}")
    late = torch.full((1 << 20,), float(me + 1), device=at) * 3
    work = dist.all_reduce(late, async_op=True)
    assert work is not None
    assert work.get_future().wait()[0].unique().tolist() == [3.0 * total]
    strided = torch.full((4, 8), float(me + 1), device=at)
    dist.all_reduce(strided.t()[2:6])
    assert strided[:, 2:6].unique().tolist() == [total]
    assert strided[:, :2].unique().tolist() == [float(me + 1)], "what is beside it stays"
    dist.destroy_process_group()
    return done + 2


def gigabytes(backends: tuple[str, ...], mebibytes: int) -> dict[str, float]:
    """GB/s of an all-reduce of this size by each backend, by turns in the same ranks: the bytes of the tensor by the
    median time."""
    dist.init_process_group("phalanx")
    groups = {name: dist.new_group(backend=name) for name in backends}
    tensor = torch.ones(mebibytes << 18, device=device())
    taken: dict[str, list[float]] = {name: [] for name in backends}
    for _ in range(8):
        for name, group in groups.items():
            tensor.fill_(0)
            dist.barrier()
            synchronize()
            began = time.perf_counter()
            dist.all_reduce(tensor, group=group)
            synchronize()
            taken[name].append(time.perf_counter() - began)
    dist.destroy_process_group()
    return {name: (mebibytes << 20) / sorted(times[2:])[3] / 1e9 for name, times in taken.items()}


def used_by_nccl() -> tuple[float, list[float]]:
    """One rank over NCCL: a sum, and the losses of DDP."""
    dist.init_process_group("nccl")
    tensor = torch.ones(1000, device=device())
    dist.all_reduce(tensor)
    total = tensor.sum().item()
    dist.destroy_process_group()
    return total, losses("nccl")


def used_by_both() -> tuple[float, float]:
    """CPU tensors by phalanx, CUDA's by NCCL, in one group."""
    dist.init_process_group("cpu:phalanx,cuda:nccl")
    here, there = torch.ones(10), torch.ones(10, device=device())
    dist.all_reduce(here)
    dist.all_reduce(there)
    dist.barrier()
    sums = here.sum().item(), there.sum().item()
    dist.destroy_process_group()
    return sums


def computes(begun: float) -> dict[str, Any]:
    """A kernel on this device: how long after `begun`, a time of the system's clock, and where it ran."""
    first = time.time()
    result = (torch.ones(64, 64, device=device()) @ torch.ones(64, 64, device=device())).sum().item()
    return {
        "right": result == 64**3,
        "on": device().type,
        "line": first - begun,
        "kernel": time.time() - begun,
        "parent": os.getppid(),
    }


def visible() -> tuple[str, int]:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "unset"), torch.cuda.device_count()


def holds(path: str) -> int:
    """Has its GPU until the file is gone."""
    tensor = torch.ones(10, device=device())
    while os.path.exists(path):
        time.sleep(0.05)
    return int(tensor.sum().item())


def takes_too_much() -> None:
    kept = [torch.ones(1 << 28, device=device())]
    if os.environ["RANK"] == "1":
        while True:
            kept.append(torch.ones(1 << 30, device=device()))
    time.sleep(60)


def asserts_in_a_kernel() -> None:
    rows = torch.zeros(4, 4, device=device())
    if os.environ["RANK"] == "1":
        print(rows[torch.tensor([9], device=device())].sum().item())
    time.sleep(60)


def is_killed_at_work(path: str) -> None:
    """Computes until it is killed; the second rank says when it has begun."""
    at = device()
    square = torch.ones(2048, 2048, device=at)
    for step in range(1 << 30):
        square = square @ square
        if at.type == "cuda":
            torch.cuda._sleep(1 << 30)
        if step == 2 and os.environ["RANK"] == "1":
            with open(path + ".new", "w") as file:
                file.write(str(os.getpid()))
            os.rename(path + ".new", path)


def hangs_in_a_collective(backend: str) -> None:
    """A collective operation that doesn't come back: behind a kernel that sleeps, or of one rank of two."""
    dist.init_process_group(backend)
    tensor = torch.ones(5, device=device() if backend == "nccl" else "cpu")
    dist.all_reduce(tensor)
    if backend == "nccl":
        torch.cuda._sleep(1 << 45)
    elif dist.get_rank() == 1:
        time.sleep(100)
    dist.all_reduce(tensor)
    synchronize()
    print(tensor.sum().item())


def works_for(seconds: float) -> None:
    until = time.monotonic() + seconds
    square = torch.ones(256, 256, device=device())
    while time.monotonic() < until:
        (square @ square).sum().item()
        time.sleep(0.001)  # a card does 20,000 such steps a second, whose trace would be too long


def saves(folder: str) -> dict[str, Any]:
    """A checkpoint of this device's tensors while it goes on: seconds of the call, and of the whole."""
    from phalanx import checkpoint

    state = {"weights": torch.full((64 << 18,), 3.0, device=device()), "step": 7}
    synchronize()
    began = time.perf_counter()
    saving = checkpoint.save_async(state, 7)
    call = time.perf_counter() - began
    state["weights"].fill_(9.0)  # what comes after the call is not saved
    saving.result(60)
    whole = time.perf_counter() - began
    found = checkpoint.latest()
    assert found is not None
    step, saved = found
    return {"step": step, "values": saved["weights"].unique().tolist(), "call": call, "whole": whole}


def autocasts() -> tuple[str, list[float]]:
    """DDP under bf16 autocast over `phalanx`: the type of an activation, and the first and the last loss."""
    dist.init_process_group("phalanx")
    at = device()
    torch.manual_seed(1)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1).to(at))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    rows = torch.randn(64, 32, device=at)
    seen = []
    for _ in range(20):
        with torch.autocast(at.type, dtype=torch.bfloat16):
            out = net(rows)
            loss = (out.float() - rows.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    dist.destroy_process_group()
    return str(out.dtype), [seen[0], seen[-1]]
