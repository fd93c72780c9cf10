"""Two ranks, which are Ray's actors, that read by Ray Data's streaming split, with its local shuffle buffer."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_AUTH_MODE": "disabled",
}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["PYTHONPATH"] = sys.path[0]  # for the actors
from passes import BATCH, RANKS, files_of, later_epochs, peer_program

# Each pass begins with some seconds in which no row comes, so one that is cut off says nothing.
PASS_MOST_S = 60.0


class Rank:
    def __init__(self, variables: dict[str, str]) -> None:
        os.environ.update(variables)

    def rate(self, rows: Any, tensors: bool, seconds: float) -> float:
        import torch

        shuffled = {"batch_size": BATCH, "local_shuffle_buffer_size": 16 * BATCH}

        def passes() -> Iterator[Any]:
            if tensors:
                yield from rows.iter_torch_batches(**shuffled)
                return
            for batch in rows.iter_batches(batch_format="numpy", **shuffled):
                strings = {name: values.tolist() for name, values in batch.items() if name != "label"}
                yield {**strings, "label": torch.as_tensor(batch["label"])}

        return later_epochs(passes, seconds, PASS_MOST_S)


def rate(folder: str, kept: str, seconds: float) -> float:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import ray

    # Paths of its sockets have to be short.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as place:
        ray.init(
            num_cpus=2,
            object_store_memory=4 << 30,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=place,
            _node_ip_address="127.0.0.1",
        )
        try:
            ray.data.DataContext.get_current().enable_progress_bars = False
            names = ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
            shared = {name: os.environ[name] for name in names} | {"WORLD_SIZE": str(RANKS)}
            schema = pq.read_schema(files_of(folder)[0])
            tensors = not any(pa.types.is_string(kind) or pa.types.is_binary(kind) for kind in schema.types)
            splits = ray.data.read_parquet(files_of(folder)).streaming_split(RANKS, equal=True)
            actor = ray.remote(num_cpus=0)(Rank)
            ranks = [actor.remote({**shared, "RANK": str(rank)}) for rank in range(RANKS)]
            calls = [
                rank.rate.remote(split, tensors, seconds) for rank, split in zip(ranks, splits, strict=True)
            ]
            return float(sum(ray.get(calls)))
        finally:
            ray.shutdown()


if __name__ == "__main__":
    peer_program(None, rate)
