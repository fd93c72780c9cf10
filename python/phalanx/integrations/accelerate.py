"""Accelerate's `notebook_launcher`, with ranks on Spark. Accelerate itself is not imported.

LIBRARY-1 (one-call): code written for `accelerate.notebook_launcher` runs by replacing that one call: the parameters
have the same names, order and defaults, and what is wrong in them is refused before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..connect.client import is_remote
from ..distributor import TorchDistributor
from ..rank.notices import Preempted, preempted
from ..request.settings import ANY_FAILURE
from ..spark.session import active_session, is_local

PRECISIONS = ("no", "fp8", "fp16", "bf16")

# What configures Accelerate, and its processes inherit.
_CARRIED = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str = "29500",
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
    *,
    local_mode: bool | None = None,
    use_gpu: bool | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Calls `function(*args)` in `num_nodes * num_processes` ranks, and returns what rank 0 returned.

    function, args    what to call; the function makes its `Accelerator` itself
    num_processes     the number of ranks, on each of `num_nodes`
    mixed_precision   no, fp8, fp16 or bf16: what `Accelerator()` takes where its own argument says nothing
    max_restarts      how often all ranks start again after a failure of any kind

    The other parameters of Accelerate's function are where its processes meet, which Phalanx sees to: they have no
    effect. `node_rank` has to be 0, since one call starts the ranks of all nodes.

    local_mode, use_gpu   as for `TorchDistributor`; None is what the session has: ranks on the driver if its master
                          is local, and GPUs if Spark was told of some
    env, **options        the other arguments of `TorchDistributor`

    Raises `ValueError` for a number or a precision that can't be; else as `TorchDistributor` and its `run`.
    """
    del use_port, master_addr, rdzv_backend, rdzv_endpoint, rdzv_conf, rdzv_id
    del monitor_interval, log_line_prefix_template
    if num_processes is None:
        raise ValueError(
            "You have to specify the number of devices you would like to use, add `num_processes=...` to your call."
        )
    if node_rank != 0:
        raise ValueError(
            f"node_rank is {node_rank}, but one call starts the ranks of all nodes; leave it out"
        )
    precision = str(getattr(mixed_precision, "value", mixed_precision)).lower()
    if precision not in PRECISIONS:
        raise ValueError(f"Unknown mixed_precision mode: {precision}. Choose between {list(PRECISIONS)}.")
    inherited = {name: value for name, value in os.environ.items() if name.startswith(_CARRIED)}
    if precision != "no":
        inherited["ACCELERATE_MIXED_PRECISION"] = precision
    if max_restarts:
        options = {"restart_on": ANY_FAILURE, **options}
    local, gpu = _what_there_is(local_mode)
    return TorchDistributor(
        num_processes * num_nodes,
        local_mode=local,
        use_gpu=gpu if use_gpu is None else use_gpu,
        env={**inherited, **(env or {})},
        max_restarts=max_restarts or None,
        **options,
    ).run(function, *args)


def _what_there_is(local_mode: bool | None) -> tuple[bool, bool]:
    """Whether the ranks run on the driver, and whether there are GPUs for them."""
    spark = active_session()
    remote = is_remote(spark)
    local = not remote and is_local(spark) if local_mode is None else local_mode
    if local:
        return True, not remote and bool(spark.sparkContext.resources.get("gpu"))
    return False, spark.conf.get("spark.task.resource.gpu.amount", None) is not None


def save_if_preempted(accelerator: Any, folder: str | os.PathLike[str], step: int) -> None:
    """Where a host of the run is to go (`phalanx.preempted`), has the `Accelerator` save its state into `folder`, which
    all hosts share, and raises `phalanx.Preempted`; else returns at once. All ranks call it at the same steps.

    Raises as `phalanx.preempted`, and as `accelerator.save_state`.
    """
    notice = preempted(step)
    if notice is not None:
        accelerator.save_state(os.fspath(folder))
        raise Preempted(step, notice)
