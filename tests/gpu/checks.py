"""The checks, in the order of their worth: what would hurt most if it were not so comes first."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from phalanx import TrainingError, run_local

from gpu import ranks
from gpu.check import CHECKS, Skip, check, fails

__all__ = ["CHECKS"]

QUIET: dict[str, Any] = {"logs": "off", "grace": 2}
RUNS = 20


def has_gpu() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and bool(smi("uuid"))


def smi(*fields: str) -> list[list[str]]:
    """What `nvidia-smi` has of each card, without a CUDA context of this process."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in told.splitlines()]


def needs(module: str, *packages: str) -> Any:
    """A module of the checks that imports these packages."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Skip(f"there is no {package} here")
    return importlib.import_module(module)


def used_mib() -> int:
    return sum(int(used) for [used] in smi("memory.used"))


def back_to(mib: int, within_s: float = 8) -> int:
    """Waits until the cards have no more than this in use, and returns what they have."""
    until = time.monotonic() + within_s
    while (now := used_mib()) > mib + 16:
        assert time.monotonic() < until, f"{now} MiB of the cards are in use, and {mib} were before"
        time.sleep(0.1)
    return now


def close(name: str, got: list[float], wanted: list[float]) -> None:
    there, here = torch.tensor(got), torch.tensor(wanted)
    assert torch.allclose(there, here, **ranks.CLOSE), (
        f"{name}: the losses are {got}, and on the CPU {wanted}"
    )


@check("nccl-one-rank", needs_gpu=True)
def nccl_one_rank() -> str:
    total, seen = run_local(ranks.used_by_nccl, **QUIET)
    assert total == 1000
    close("nccl", seen, ranks.losses(None))
    return f"a sum and {len(seen)} steps of DDP, with the CPU's losses"


@check("phalanx-beside-nccl", needs_gpu=True)
def phalanx_beside_nccl() -> str:
    assert run_local(ranks.used_by_both, **QUIET) == (10, 10)
    return '"cpu:phalanx,cuda:nccl" reduces tensors of both'


@check("phalanx-operations")
def phalanx_operations() -> str:
    done = run_local(ranks.operations, num_processes=2, **QUIET)
    return (
        f"two ranks on one device: {done} results of every operation in {len(ranks.DTYPES)} types are right"
    )


@check("ddp-losses")
def ddp_losses() -> str:
    alone = ranks.losses(None)
    close("phalanx", run_local(ranks.losses, "phalanx", num_processes=2, **QUIET), alone)
    return (
        f"two ranks over phalanx have the losses of one process on the CPU: {alone[0]:.3f} to {alone[-1]:.3f}"
    )


@check("warm-runs", limit_s=60)
def warm_runs() -> str:
    """A pool that never touches CUDA, and whose ranks use it."""
    before = used_mib()
    run_local(ranks.computes, time.time(), **QUIET)
    times, parents, most = [], set(), 0
    for _ in range(RUNS):
        told = run_local(ranks.computes, time.time(), **QUIET)
        assert told["right"], told
        assert told["on"] == ("cuda" if has_gpu() else "cpu"), told
        times.append(told["kernel"])
        parents.add(told["parent"])
        if has_gpu():
            most = max(most, back_to(before) - before)
    assert not torch.cuda.is_initialized()
    return (
        f"{RUNS} runs from one pool; the first kernel after {statistics.median(times):.2f} s (worst {max(times):.2f}); "
        f"the card's memory is back to where it was, but for {most} MiB"
    )


@check("first-kernel", limit_s=60)
def first_kernel() -> str:
    """From the call to the end of the first kernel, cold and warm by turns."""
    run_local(ranks.computes, time.time(), **QUIET)
    cold, warm = [], []
    for _ in range(3):
        cold.append(run_local(ranks.computes, time.time(), warm=False, **QUIET)["kernel"])
        warm.append(run_local(ranks.computes, time.time(), **QUIET)["kernel"])
    return f"cold {', '.join(f'{s:.2f}' for s in cold)} s; warm {', '.join(f'{s:.2f}' for s in warm)} s"


@check("visible-devices", needs_gpu=True)
def visible_devices() -> str:
    [[uuid], *_] = smi("uuid")
    seen = []
    for name in (None, "0", uuid):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if name is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = name
        had, count = run_local(ranks.visible, **QUIET)
        assert (had, count) == (name or uuid, 1), f"as {name}: {had}, of which torch sees {count}"
        seen.append(had)
    return f"unset, by number and by UUID: {', '.join(seen)}"


@check("no-gpu")
def no_gpu() -> str:
    assert run_local(ranks.visible, use_gpu=False, **QUIET) == ("", 0)
    return "ranks with use_gpu=False see no card"


@check("lease", needs_gpu=True)
def lease() -> str:
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder, "held")
        held.touch()
        run = run_local(ranks.holds, str(held), wait=False, **QUIET)
        script = "import phalanx; phalanx.run_local(print, use_gpu=True)"
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=25)
        held.unlink()
        assert run.result(20) == 10
    said = other.stderr.splitlines()[-1]
    assert "of which 1 are in use by other runs" in said, said
    assert run_local(ranks.visible, use_gpu=True, **QUIET)[1] == 1, "it is free again"
    return f"another process is told: {said.partition(': ')[2]}"


def raised_on_rank_1(train: Callable[[], None]) -> TrainingError:
    """The failure of two ranks that share the card, which afterwards has its memory back."""
    before = used_mib()
    with fails(TrainingError) as told:
        run_local(train, num_processes=2, **QUIET)
    error: TrainingError = told.value
    assert error.rank == 1, error
    back_to(before)
    return error


@check("out-of-memory", needs_gpu=True)
def out_of_memory() -> str:
    error = raised_on_rank_1(ranks.takes_too_much)
    assert "OutOfMemoryError" in error.exception_type, error
    assert "Tried to allocate" in str(error), error
    return f"{error.kind}: {error.message}"


@check("assert-in-a-kernel", needs_gpu=True)
def assert_in_a_kernel() -> str:
    error = raised_on_rank_1(ranks.asserts_in_a_kernel)
    assert "device-side assert" in str(error), error
    return f"{error.kind}: {error.message}"


@check("sigkill-at-work")
def sigkill_at_work() -> str:
    before = used_mib()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pid")
        run = run_local(ranks.is_killed_at_work, str(path), num_processes=2, wait=False, **QUIET)
        while not path.exists():
            assert not run.done, run.snapshot()
            time.sleep(0.02)
        killed = int(path.read_text())
        os.kill(killed, signal.SIGKILL)
        began = time.monotonic()
        with fails(TrainingError) as told:
            run.result(25)
        took = time.monotonic() - began
    assert (told.value.rank, told.value.signal) == (1, signal.SIGKILL), told.value
    assert not Path(f"/proc/{killed}").exists()
    back_to(before)
    return f"told after {took:.1f} s, nothing is left: {told.value.message}"


@check("hang")
def hang() -> str:
    """A collective operation that doesn't come back, with the flight recorder's dump in the failure."""
    backend, count = ("nccl", 1) if has_gpu() else ("gloo", 2)
    before = used_mib()
    with fails(TrainingError) as told:
        # NCCL's first operation takes seconds in which a rank does nothing that shows.
        seconds = 8 if has_gpu() else 4
        run_local(ranks.hangs_in_a_collective, backend, num_processes=count, hang_timeout=seconds, **QUIET)
    error = told.value
    assert error.kind == "hang", error
    assert f"{backend}:all_reduce" in str(error), error
    assert "hangs_in_a_collective" in error.stacks, error.stacks
    back_to(before)
    doing = [line for line in str(error).splitlines() if f"{backend}:all_reduce" in line]
    return doing[0].strip()


@check("staging")
def staging() -> str:
    """Two ranks on one device: `phalanx` beside gloo."""
    fast = run_local(ranks.gigabytes, ("phalanx", "gloo"), 64, num_processes=2, **QUIET)
    return (
        ", ".join(f"{name} {speed:.2f} GB/s" for name, speed in fast.items()) + " of an all-reduce of 64 MiB"
    )


@check("checkpoint")
def checkpoint() -> str:
    with tempfile.TemporaryDirectory() as folder:
        told = run_local(ranks.saves, folder, checkpoint_dir=folder, **QUIET)
    assert (told["step"], told["values"]) == (7, [3.0]), told
    return f"64 MiB: the call takes {told['call'] * 1000:.0f} ms, the whole {told['whole'] * 1000:.0f} ms"


@check("autocast")
def autocast() -> str:
    kind, (first, last) = run_local(ranks.autocasts, num_processes=2, **QUIET)
    assert kind == "torch.bfloat16", kind
    assert last < first / 2, (first, last)
    return f"bf16 over phalanx: {first:.2f} to {last:.2f} in 20 steps"


@check("profile")
def profile() -> str:
    with tempfile.TemporaryDirectory() as folder:
        run = run_local(ranks.works_for, 15.0, wait=False, **QUIET)
        while not run.snapshot()["ranks"] or "training" not in run.status:
            assert not run.done, run.snapshot()
            time.sleep(0.05)
        time.sleep(3 if has_gpu() else 1)
        taken = run.profile(2.0, path=Path(folder, "profile.json"))
        run.cancel("the profile is taken")
        events = json.loads(Path(taken.path).read_text())["traceEvents"]
    assert taken.ranks == [0], taken
    kinds = {event.get("cat") for event in events}
    if has_gpu():
        assert "kernel" in kinds, (kinds, taken.missing)
    kernels = sum(event.get("cat") == "kernel" for event in events)
    return f"{len(events)} events in 2 s, {kernels} of them kernels of the card"


@check("data")
def data() -> str:
    """Batches of `phalanx.data` to the device, pinned where there is one, in the step's shadow."""
    told = run_local(needs("gpu.batches", "pyarrow").fed, **QUIET)
    assert told["sum"] == told["wanted"], told
    speeds = "".join(
        f"{kind} {speed:.1f} GB/s to the device, " for kind, speed in told["gigabytes_s"].items()
    )
    return (
        f"{told['rows']} rows, each once; {speeds}{told['overlapped_ms']:.1f} ms a step that computes for "
        f"{told['compute_ms']:.1f} ms"
    )


@check("scoring", limit_s=90)
def scoring() -> str:
    """Tasks decode images, and one process scores them: as fast as it can."""
    torch.set_num_threads(1)  # before tasks are forked
    scoring = needs("gpu.scoring", "pyarrow", "PIL")
    side, batch, seconds = (224, 128, 8.0) if has_gpu() else (32, 32, 1.0)
    count = max(2, min(15, len(os.sched_getaffinity(0)) - 1))
    torch.manual_seed(1)
    net = scoring.Images(side)
    tasks = scoring.Tasks(scoring.Scorer.of(net, "0" if has_gpu() else None, batch), side, count)
    try:
        first = tasks.first()
        time.sleep(2 if has_gpu() else 0)
        before, began = tasks.rows(), time.monotonic()
        busy = busy_for(seconds)
        speed = (tasks.rows() - before) / (time.monotonic() - began)
    finally:
        tasks.end()
    expected = tasks.expected(net)
    for scores in first:
        assert torch.allclose(scores, expected[: len(scores)], rtol=2e-2, atol=2e-2 * expected.std().item())
    assert speed > 0
    if busy is not None:
        assert busy >= 90, f"the GPU is busy for {busy:.0f} % of the time, at {speed:.0f} images a second"
    seen = f"{count} tasks decode JPEGs of {side} by {side}: {speed:.0f} a second, with the CPU's scores"
    return seen if busy is None else f"{seen}; the GPU is busy for {busy:.0f} % of the time"


def busy_for(seconds: float) -> float | None:
    """For which part of a time the card was busy, in percent, by what the driver says; None without one."""
    if not has_gpu():
        time.sleep(seconds)
        return None
    seen = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        seen.append(float(smi("utilization.gpu")[0][0]))
        time.sleep(0.2)
    return statistics.mean(seen)


@check("scoring-halves", needs_gpu=True)
def scoring_halves() -> str:
    """A batch that takes more memory than the card has."""
    scoring = needs("gpu.scoring", "pyarrow")
    import pyarrow as pa

    [[total], *_] = smi("memory.total")
    rows = 64
    model = scoring.Hungry((int(total) << 20) * 5 // 4 // rows)
    column = pa.array([[float(at), 1.0] for at in range(rows)], pa.list_(pa.float32()))
    scores = scoring.Scorer.of(model, "0", rows).scores(iter([column]), lambda x: x)
    assert [value for array in scores for value in array.to_pylist()] == [at + 1.0 for at in range(rows)]
    return f"{rows} rows that take 1.25 times the card's memory have their outputs"


@check("doctor")
def doctor() -> str:
    """What the doctor finds of this host's cards."""
    from phalanx.diagnosis import host_checks, probe

    facts = {
        "host": "here",
        "gpus": probe.gpus(20),
        "torch": probe.torch(25),
        "task_gpus": ["0"],
    }
    assert "error" not in facts["torch"], facts["torch"]
    found = [
        finding for finding in host_checks.gpus(facts, host_checks.Need(2, True)) if finding.level == "error"
    ]
    if not has_gpu():
        assert [finding.check for finding in found] == ["GPUs"], found
        return f"as it should on a host without: {found[0].means}"
    assert found == [], found
    return ", ".join(f"{gpu['name']} ({gpu['memory.total']} MiB)" for gpu in facts["gpus"]["gpus"])


@check("compile", limit_s=60)
def compiled() -> str:
    close(
        "torch.compile",
        run_local(ranks.losses, "phalanx", True, num_processes=2, **QUIET),
        ranks.losses(None),
    )
    return "torch.compile of DDP over phalanx, with the CPU's losses"
