"""A hang in NCCL, where there are two GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from phalanx import TorchDistributor, TrainingError

pytestmark = pytest.mark.timeout(120)


def goes_two_ways() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    device = f"cuda:{dist.get_rank()}"
    torch.cuda.set_device(device)
    dist.all_reduce(torch.ones(3, device=device))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(5, dtype=torch.float16, device=device))
        torch.cuda.synchronize()
    else:
        import time

        time.sleep(100)


def test_a_hang_names_the_operation_of_nccl(spark: Any) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs two GPUs")
    distributor = TorchDistributor(num_processes=2, hang_timeout=4, grace=1)
    with pytest.raises(TrainingError) as failed:
        distributor.run(goes_two_ways)
    assert failed.value.kind == "hang"
    assert "nccl:all_reduce of Half [5], operation 2" in str(failed.value)
