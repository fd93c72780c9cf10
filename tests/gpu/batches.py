"""A rank that takes batches of `phalanx.data` to its device."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import phalanx
import pyarrow as pa
import torch

from gpu.ranks import device, synchronize

ROWS, WIDTH, BATCH = 16_384, 1024, 1024


def fed() -> dict[str, Any]:
    """A pass over a table of 64 MiB: copied only, and then with work in each step."""
    values = np.arange(ROWS * WIDTH, dtype=np.float32) % 251
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)})
    at = device()
    loader = phalanx.data(table).loader(batch_size=BATCH)
    total = torch.zeros((), dtype=torch.float64, device=at)
    copying = {"pageable": 0.0, "pinned": 0.0}
    for batch in loader:
        for kind in copying if at.type == "cuda" else ("pageable",):
            rows = batch["x"].pin_memory() if kind == "pinned" else batch["x"]
            synchronize()
            began = time.perf_counter()
            there = rows.to(at, non_blocking=True)
            synchronize()
            copying[kind] += time.perf_counter() - began
        total += there.double().sum()
    weights = torch.ones(WIDTH, WIDTH, device=at)

    def work(rows: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            rows = rows @ weights / WIDTH
        return rows.sum()

    compute, step = [], []
    there = torch.ones(BATCH, WIDTH, device=at)
    for _ in range(10):
        began = time.perf_counter()
        work(there).item()
        compute.append(time.perf_counter() - began)
    began = time.perf_counter()
    for batch in loader:
        rows = batch["x"].pin_memory() if at.type == "cuda" else batch["x"]
        work(rows.to(at, non_blocking=True)).item()
        step.append(time.perf_counter() - began)
        began = time.perf_counter()
    return {
        "rows": ROWS,
        "sum": total.item(),
        "wanted": float(values.astype(np.float64).sum()),
        "gigabytes_s": {kind: values.nbytes / s / 1e9 for kind, s in copying.items() if at.type == "cuda"},
        "compute_ms": sorted(compute)[5] * 1e3,
        "overlapped_ms": sorted(step)[len(step) // 2] * 1e3,
    }
