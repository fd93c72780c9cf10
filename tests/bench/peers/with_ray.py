"""Two ranks, which are Ray's actors, that read by Ray Data's streaming split, with its local shuffle buffer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from own_ray import own_ray
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

    with own_ray(processors=2, store_bytes=4 << 30):
        ray.data.DataContext.get_current().enable_progress_bars = False
        names = ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
        shared = {name: os.environ[name] for name in names} | {"WORLD_SIZE": str(RANKS)}
        schema = pq.read_schema(files_of(folder)[0])
        tensors = not any(pa.types.is_string(kind) or pa.types.is_binary(kind) for kind in schema.types)
        splits = ray.data.read_parquet(files_of(folder)).streaming_split(RANKS, equal=True)
        actor = ray.remote(num_cpus=0)(Rank)
        ranks = [actor.remote({**shared, "RANK": str(rank)}) for rank in range(RANKS)]
        calls = [rank.rate.remote(split, tensors, seconds) for rank, split in zip(ranks, splits, strict=True)]
        return float(sum(ray.get(calls)))


if __name__ == "__main__":
    peer_program(None, rate)
