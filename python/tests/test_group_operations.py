"""Every operation of torch.distributed by torch's documented semantics, on gloo and on our backend alike."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.backend_ranks import Rank, Ranks
from support.tiers import whole

pytestmark = pytest.mark.timeout(120)
# What gloo does is what torch means.
BACKENDS = [pytest.param("gloo", marks=whole("gloo")), "phalanx"]
SIZES = [pytest.param(2, marks=whole("two ranks")), 3]


def values(rank: int, count: int, dtype: Any) -> Any:
    """A rank's elements: small integers, so that every order of summation gives the same."""
    import torch

    numbers = torch.arange(count) % 5 + rank + 1
    return numbers.to(dtype)


def reduces(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    integers = [torch.int8, torch.uint8, torch.int32, torch.int64]
    floats = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    if rank.backend == "phalanx":
        integers.append(torch.int16)  # gloo has none
    op = dist.ReduceOp
    formulas = {
        op.SUM: lambda all: all.sum(0),
        op.PRODUCT: lambda all: all.prod(0),
        op.MIN: lambda all: all.amin(0),
        op.MAX: lambda all: all.amax(0),
    }
    for dtype, count in itertools.product([*integers, *floats], [1, 7, 1000, 70_001]):
        everybody = torch.stack([values(r, count, torch.int64) for r in range(rank.size)])
        for how, formula in formulas.items():
            mine = values(rank.rank, count, dtype)
            dist.all_reduce(mine, op=how)
            torch.testing.assert_close(mine, formula(everybody).to(dtype), rtol=0, atol=0)
            mine = values(rank.rank, count, dtype)
            dist.reduce(mine, dst=1, op=how)
            if rank.rank == 1:
                torch.testing.assert_close(mine, formula(everybody).to(dtype), rtol=0, atol=0)
    bits: dict[Any, Any] = {op.BAND: torch.bitwise_and, op.BOR: torch.bitwise_or, op.BXOR: torch.bitwise_xor}
    for dtype, (how, combine) in itertools.product(integers, bits.items()):
        mine = values(rank.rank, 33, dtype)
        expected = values(0, 33, dtype)
        for r in range(1, rank.size):
            expected = combine(expected, values(r, 33, dtype))
        dist.all_reduce(mine, op=how)
        assert torch.equal(mine, expected)
    number = torch.tensor([complex(rank.rank, 1), complex(2, -rank.rank)])
    dist.all_reduce(number)
    ranks_sum = sum(range(rank.size))
    assert number.tolist() == [complex(ranks_sum, rank.size), complex(2 * rank.size, -ranks_sum)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_reductions_are_their_formula_for_every_type(ranks: Ranks, backend: str, size: int) -> None:
    ranks.run(reduces, backend=backend, size=size)


def averages(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    mine = torch.full((9,), float(rank.rank))
    dist.all_reduce(mine, op=dist.ReduceOp.AVG)
    assert mine.tolist() == [(rank.size - 1) / 2] * 9
    for factor in (0.5, torch.tensor(0.5)):
        mine = torch.full((9,), 4.0)
        dist.all_reduce(mine, op=dist._make_nccl_premul_sum(factor))
        assert mine.tolist() == [2.0 * rank.size] * 9
    flags = torch.tensor([rank.rank == 0, True, False])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]
    dist.all_reduce(flags, op=dist.ReduceOp.BAND)
    assert flags.tolist() == [True, True, False]
    # directly, not as pairs of reals
    number = torch.tensor([complex(1, rank.rank)], dtype=torch.complex128)
    dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([number]).wait()
    assert number.item() == complex(rank.size, sum(range(rank.size)))
    # what float16 can't hold in between is held in float32
    half = torch.tensor([2048.0 if rank.rank == 0 else 1.0], dtype=torch.float16)
    dist.all_reduce(half)
    assert half.item() == torch.tensor(2048.0 + rank.size - 1).half().item()


@pytest.mark.parametrize("size", SIZES)
def test_reductions_that_gloo_lacks(ranks: Ranks, size: int) -> None:
    ranks.run(averages, size=size)


def moves(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    me, n = rank.rank, rank.size
    for dtype, count in itertools.product([torch.float32, torch.uint8, torch.bfloat16], [1, 5, 40_000]):
        mine = values(me, count, dtype)
        for root in range(n):
            sent = values(me, count, dtype)
            dist.broadcast(sent, src=root)
            assert torch.equal(sent, values(root, count, dtype))
            parts = [torch.empty_like(mine) for _ in range(n)] if me == root else None
            dist.gather(mine, parts, dst=root)
            assert parts is None or all(torch.equal(p, values(r, count, dtype)) for r, p in enumerate(parts))
            part = torch.empty_like(mine)
            given = [values(me + r, count, dtype) for r in range(n)] if me == root else None
            dist.scatter(part, given, src=root)
            assert torch.equal(part, values(root + me, count, dtype))
        every = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(every, mine)
        assert all(torch.equal(one, values(r, count, dtype)) for r, one in enumerate(every))
        flat = torch.empty(n * count, dtype=dtype)
        dist.all_gather_into_tensor(flat, mine)
        assert torch.equal(flat, torch.cat([values(r, count, dtype) for r in range(n)]))
        chunks = list(flat.zero_().chunk(n))
        dist.all_gather(chunks, mine)
        assert torch.equal(flat, torch.cat([values(r, count, dtype) for r in range(n)]))
        # in place: the input is a part of the output
        chunks = list(flat.zero_().chunk(n))
        chunks[me].copy_(mine)
        dist.all_gather_into_tensor(flat, chunks[me])
        assert torch.equal(flat, torch.cat([values(r, count, dtype) for r in range(n)]))
    mine = torch.arange(n * 6.0) + me
    part = torch.empty(6)
    expected = n * torch.arange(me * 6.0, me * 6.0 + 6) + sum(range(n))
    dist.reduce_scatter_tensor(part, mine)
    assert torch.equal(part, expected)
    dist.reduce_scatter(part.zero_(), list(mine.clone().chunk(n)))
    assert torch.equal(part, expected)
    out = torch.empty(n * 2)
    dist.all_to_all_single(out, torch.arange(n * 2.0) + 100 * me)
    assert torch.equal(out, torch.cat([torch.tensor([2.0 * me, 2 * me + 1]) + 100 * r for r in range(n)]))
    # rank r sends s+1 rows of two columns to rank s
    sent = torch.full((sum(range(1, n + 1)), 2), float(me))
    out = torch.empty(n * (me + 1), 2)
    dist.all_to_all_single(out, sent, [me + 1] * n, list(range(1, n + 1)))
    assert out.tolist() == [[float(r)] * 2 for r in range(n) for _ in range(me + 1)]
    dist.barrier()
    dist.barrier(async_op=True).wait()
    objects: list[Any] = [None] * n
    dist.all_gather_object(objects, {"rank": me, "text": "x" * me})
    assert objects == [{"rank": r, "text": "x" * r} for r in range(n)]
    told: list[Any] = ["a", {"b": 1}] if me == 0 else [None, None]
    dist.broadcast_object_list(told, src=0)
    assert told == ["a", {"b": 1}]
    gathered: list[Any] | None = [None] * n if me == 0 else None
    dist.gather_object((me, "g"), gathered, dst=0)
    assert gathered is None or gathered == [(r, "g") for r in range(n)]
    got: list[Any] = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(n)] if me == 0 else [None] * n, src=0)
    assert got == [f"for {me}"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_moves_bring_everything_to_its_place(ranks: Ranks, backend: str, size: int) -> None:
    ranks.run(moves, backend=backend, size=size)


def uneven_moves(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    me, n = rank.rank, rank.size
    mine = torch.full((me + 1,), float(me))
    every = [torch.empty(r + 1) for r in range(n)]
    dist.all_gather(every, mine)
    assert [one.tolist() for one in every] == [[float(r)] * (r + 1) for r in range(n)]
    part = torch.empty(me + 1)
    dist.reduce_scatter(part, [torch.full((r + 1,), float(me)) for r in range(n)])
    assert part.tolist() == [float(sum(range(n)))] * (me + 1)
    outs = [torch.empty(r + me) for r in range(n)]
    dist.all_to_all(outs, [torch.full((me + r,), float(me)) for r in range(n)])
    assert [one.tolist() for one in outs] == [[float(r)] * (r + me) for r in range(n)]
    parts = [torch.empty(r + 1) for r in range(n)] if me == 0 else None
    dist.gather(mine, parts, dst=0)
    assert parts is None or [one.tolist() for one in parts] == [[float(r)] * (r + 1) for r in range(n)]
    # types that have no reductions are bytes
    small = torch.full((8,), float(me), dtype=torch.float32).to(torch.float8_e4m3fn)
    dist.broadcast(small, src=n - 1)
    assert small.float().tolist() == [float(n - 1)] * 8
    outs = [torch.empty(4, dtype=torch.float8_e4m3fn) for _ in range(n)]
    dist.all_to_all(outs, [torch.full((4,), float(r)).to(torch.float8_e4m3fn) for r in range(n)])
    assert all(one.float().tolist() == [float(me)] * 4 for one in outs)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_may_differ_where_torch_allows_it(ranks: Ranks, size: int) -> None:
    ranks.run(uneven_moves, size=size)


def odd_tensors(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    me, n = rank.rank, rank.size
    matrix = torch.arange(12.0).reshape(3, 4)
    expected = n * matrix + sum(range(n))
    if rank.backend == "phalanx":  # gloo refuses what isn't contiguous
        transposed = (matrix + me).t().contiguous().t()
        dist.all_reduce(transposed)
        assert torch.equal(transposed, expected)
        column = torch.zeros(3, 4)
        column[:, 1] = me + 1.0
        dist.broadcast(column[:, 1], src=1)
        assert column.tolist() == [[0.0, 2.0, 0.0, 0.0]] * 3
        dist.all_reduce(column[:, 1], async_op=True).wait()
        assert column.tolist() == [[0.0, 2.0 * n, 0.0, 0.0]] * 3
        nobody_waits = torch.full((3, 4), 1.0)[:, 2]
        dist.all_reduce(nobody_waits, async_op=True)
        dist.barrier()
        while nobody_waits.tolist() != [float(n)] * 3:  # BACKEND-20
            pass
        row = torch.full((1, 4), me + 1.0)
        dist.all_reduce(row.expand(3, 4))  # an element once, whatever it stands for
        assert row.tolist() == [[sum(range(n + 1))] * 4]
        dist.all_reduce(torch.tensor(float("nan")).expand(2), async_op=True).wait()
        if me == 1:
            dist.broadcast(torch.arange(3.0), src=1)
        else:
            with pytest.raises(RuntimeError, match="an expanded view"):
                dist.broadcast(torch.zeros(1).expand(3), src=1)
    leaf = torch.ones(4, requires_grad=True)
    dist.all_reduce(leaf.grad if leaf.grad is not None else leaf.detach())
    assert leaf.tolist() == [float(n)] * 4
    dist.all_reduce(torch.empty(0))
    dist.broadcast(torch.empty(0), src=0)
    scalar = torch.tensor(2.0)
    dist.all_reduce(scalar)
    assert scalar.item() == 2.0 * n
    group: Any = dist.group.WORLD
    one, two = torch.ones(3), torch.ones(2)
    group.allreduce_coalesced([one]).wait()
    assert one.tolist() == [n] * 3
    with dist._coalescing_manager():
        dist.all_reduce(one)
        dist.all_reduce(two)
    assert one.tolist() == [n**2] * 3
    assert two.tolist() == [n, n]


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_scalars_and_empty_tensors(ranks: Ranks, backend: str) -> None:
    ranks.run(odd_tensors, backend=backend, size=2)


def messages(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    me, n = rank.rank, rank.size
    right, left = (me + 1) % n, (me - 1) % n
    for count in (1, 1000, 3_000_000):  # the last is more than any buffer on the way
        mine, theirs = torch.full((count,), float(me)), torch.empty(count)
        # whoever waits first: both orders are fine, also when all ranks take the same
        reqs = [dist.isend(mine, right), dist.irecv(theirs, left)]
        [req.wait() for req in reqs]
        assert theirs.unique().tolist() == [float(left)]
        reqs = [dist.irecv(theirs.zero_(), right), dist.isend(mine, left)]
        [req.wait() for req in reqs]
        assert theirs.unique().tolist() == [float(right)]
        ops = [dist.P2POp(dist.irecv, theirs.zero_(), left), dist.P2POp(dist.isend, mine, right)]
        [req.wait() for req in dist.batch_isend_irecv(ops)]
        assert theirs.unique().tolist() == [float(left)]
    # tags
    if me == 0:
        sent = [dist.isend(torch.tensor([tag]), 1, tag=tag) for tag in (5, 6, 7)]
        [request.wait() for request in sent if request is not None]
    elif me == 1:
        for tag in (7, 5, 6):
            got = torch.empty(1, dtype=torch.int64)
            dist.recv(got, 0, tag=tag)
            assert got.item() == tag
    # a collective while a message is waited for, which then comes beside it (GROUP-64)
    waiting = dist.irecv(got := torch.zeros(2), left, tag=9)
    total = torch.ones(3)
    dist.all_reduce(total)
    dist.isend(torch.full((2,), float(me)), right, tag=9)
    waiting.wait()
    assert got.tolist() == [float(left)] * 2
    # from anybody
    if me == 0:
        sources = set()
        for _ in range(n - 1):
            got = torch.zeros(1)
            source = dist.recv(got, tag=11)
            assert got.item() == source
            sources.add(source)
        assert sources == set(range(1, n))
    else:
        dist.send(torch.tensor([float(me)]), 0, tag=11)
    if rank.backend == "phalanx":
        strided = torch.zeros(4, 2)
        reqs = [dist.irecv(strided[:, 1], left), dist.isend(torch.full((4,), float(me)), right)]
        [req.wait() for req in reqs]
        assert strided.tolist() == [[0.0, float(left)]] * 4
    objects: list[Any] = [None]
    if me == 0:
        dist.send_object_list([{"a": 1}], 1)
    elif me == 1:
        dist.recv_object_list(objects, 0)
        assert objects == [{"a": 1}]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_messages_reach_whoever_asks_for_them(ranks: Ranks, backend: str, size: int) -> None:
    ranks.run(messages, backend=backend, size=size)


def groups(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    me = rank.rank
    evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
    mine = evens if me % 2 == 0 else odds
    tensor = torch.tensor([float(me)])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == (2.0 if me % 2 == 0 else 4.0)
    assert dist.get_rank(mine) == me // 2
    assert dist.get_world_size(mine) == 2
    root = torch.tensor([me])
    dist.broadcast(root, src=2 if me % 2 == 0 else 3, group=mine)
    assert root.item() == me % 2 + 2
    # groups don't wait for one another
    pair = dist.new_group([0, 1])
    if me < 2:
        dist.barrier(group=pair)
    dist.destroy_process_group(mine)
    by_halves, _ = dist.new_subgroups(group_size=2)
    tensor = torch.tensor([float(me)])
    dist.all_reduce(tensor, group=by_halves)
    assert tensor.item() == (1.0 if me < 2 else 5.0)
    mixed = dist.new_group([0, 1, 2, 3], backend="gloo")
    dist.all_reduce(tensor, group=mixed)
    assert tensor.item() == 12.0
    assert dist.get_backend() == rank.backend
    assert dist.get_backend(mixed) == "gloo"


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_are_independent(ranks: Ranks, backend: str) -> None:
    ranks.run(groups, backend=backend, size=4)


def functional(rank: Rank) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functions
    from torch.distributed.device_mesh import init_device_mesh

    n, me = rank.size, rank.rank
    world: Any = dist.group.WORLD
    mine = torch.arange(4.0) + me
    summed = n * torch.arange(4.0) + sum(range(n))
    assert torch.equal(functions.all_reduce(mine, "sum", world) + 0, summed)
    assert torch.equal(mine, torch.arange(4.0) + me)
    every = torch.cat([torch.arange(4.0) + r for r in range(n)])
    assert torch.equal(functions.all_gather_tensor(mine, 0, world) + 0, every)
    assert torch.equal(functions.all_gather_into_tensor_coalesced([mine], world)[0] + 0, every)
    part = functions.reduce_scatter_tensor(every, "sum", 0, world) + 0
    assert torch.equal(part, n * (torch.arange(4.0) + me))
    assert torch.equal(functions.all_reduce_coalesced([mine, mine], "sum", world)[1] + 0, summed)
    assert torch.equal(functions.broadcast(mine, 1, world) + 0, torch.arange(4.0) + 1)
    swapped = functions.all_to_all_single(torch.full((n,), float(me)), None, None, world) + 0
    assert swapped.tolist() == [float(r) for r in range(n)]
    mesh = init_device_mesh("cpu", (n,))

    try:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor

    sharded = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), torch.arange(8.0).reshape(4, 2))
    assert sharded.sum().full_tensor().item() == 28.0

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(tensor: Any) -> Any:
        return functions.all_reduce(tensor, "sum", world) + 1

    assert torch.equal(compiled(mine), summed + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functional_collectives_and_dtensor(ranks: Ranks, backend: str) -> None:
    ranks.run(functional, backend=backend, size=2)


def wrong_arguments(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    cases: list[Any] = [
        (TypeError, "sparse", lambda: dist.broadcast(torch.ones(2).to_sparse(), src=0)),
        (TypeError, "sparse", lambda: dist.all_reduce(torch.ones(2, 2).to_sparse_csr())),
        (ValueError, "sums", lambda: dist.all_reduce(torch.ones(2).to_sparse(), op=dist.ReduceOp.MAX)),
        (TypeError, "float8", lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2))),
        (ValueError, "3 elements each", lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(3))),
        (ValueError, "1 tensors", lambda: dist.all_gather([torch.ones(2)], torch.ones(2))),
        (ValueError, "splits", lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1], [2, 2])),
        # As BINDING-18 says, though the kind is `invalid`.
        (RuntimeError, "band", lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind, match=text):
            call()  # BACKEND-10
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # none of them has broken the group
    assert tensor.item() == rank.size


def test_what_cannot_work_is_an_error_that_breaks_nothing(ranks: Ranks) -> None:
    ranks.run(wrong_arguments, size=2)
