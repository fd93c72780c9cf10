"""The doctor's run: a gang with nothing to train, by the same way as any other, that reduces a few MiB together."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from ..distributor import TorchDistributor
from ..errors import TrainingError
from .cluster_checks import rate_text
from .finding import Finding
from .stage import room_by_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FLOATS = 1 << 20
_ROUNDS = 5
_READY = "torch imported"
# How long its end may take.
_END_S = 5.0


def try_a_run(spark: SparkSession, processes: int, *, use_gpu: bool, seconds: float) -> list[Finding]:
    """What comes of an all-reduce over all ranks, in so many seconds at most."""
    distributor = TorchDistributor(
        processes, local_mode=False, use_gpu=use_gpu, warm=False, max_restarts=0, grace=1.0, mlflow=False
    )
    with room_by_value():
        run = distributor.start(reduce_together, "nccl" if use_gpu else "phalanx")
    try:
        return [judged_run(run.results(seconds), use_gpu=use_gpu)]
    except TimeoutError:
        ready = {phase.rank for phase in run.phases if phase.name == _READY}
        status = run.status
        run.cancel("phalanx doctor has no more time")
        with contextlib.suppress(TrainingError, TimeoutError):
            run.result(_END_S)
        return [judged_time_out(len(ready), processes, seconds, status)]
    except TrainingError as error:
        return [
            Finding(
                "error",
                error.host,
                "all-reduce",
                f"A run with nothing to train failed: {error.message}.",
                "docs/failures.md says what each kind of failure is; this one is " + error.kind + ".",
            )
        ]


def judged_time_out(ready: int, processes: int, seconds: float, status: str) -> Finding:
    """What it means that a run was not over in time, when so many ranks had imported torch."""
    more = "`phalanx doctor --timeout` gives more time."
    if ready < processes:
        return Finding(
            "warning",
            "",
            "all-reduce",
            f"A run was not over within {seconds:.0f} s: {ready} of {processes} ranks had imported "
            f"torch; it was {status}.",
            f"Ranks start slowly here. {more}",
        )
    return Finding(
        "error",
        "",
        "all-reduce",
        f"All {processes} ranks were ready, and did not add up anything together within {seconds:.0f} s.",
        f"Ports between the hosts that are closed to ranks do this. {more}",
    )


def reduce_together(backend: str) -> dict[str, Any]:
    """What a rank does: joins the group and adds up ones."""
    import socket

    import torch
    import torch.distributed as dist

    import phalanx
    from phalanx.rank import contract

    phalanx.phase(_READY)
    dist.init_process_group(backend)
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ[contract.ENV_LOCAL_RANK]))
        torch.cuda.set_device(device)
    seconds, right = [], True
    for _ in range(_ROUNDS):
        ones = torch.ones(_FLOATS, device=device)
        dist.barrier()
        began = time.monotonic()
        dist.all_reduce(ones)
        right = right and bool((ones == dist.get_world_size()).all().item())
        seconds.append(time.monotonic() - began)
    dist.destroy_process_group()
    return {
        "host": socket.gethostname(),
        "seconds": min(seconds),
        "right": right,
        "encrypted": os.environ.get(contract.ENV_ENCRYPTION) == "on",
    }


def judged_run(results: list[dict[str, Any]], *, use_gpu: bool) -> Finding:
    """What the ranks' answers mean."""
    wrong = [str(rank) for rank, found in enumerate(results) if not found["right"]]
    if wrong:
        return Finding(
            "error", "", "all-reduce", f"The sum was wrong on ranks {', '.join(wrong)}.", "Test the memory."
        )
    slowest = max(found["seconds"] for found in results)
    backend = "nccl" if use_gpu else "phalanx"
    how = "encrypted between hosts" if results[0]["encrypted"] else "unencrypted between hosts"
    return Finding(
        "ok",
        "",
        "all-reduce",
        f"{len(results)} ranks reduced {4 * _FLOATS >> 20} MiB over {backend} in {slowest * 1000:.0f} ms "
        f"({rate_text(4 * _FLOATS / slowest)}), {how}.",
    )
