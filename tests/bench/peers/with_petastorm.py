"""A rank that reads by Petastorm: its batch reader and its batched loader for torch, both shuffling."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from passes import BATCH, RANKS, files_of, later_epochs, peer_program


def rate(folder: str, kept: str, seconds: float) -> float:
    import numpy as np
    import pyarrow.parquet as pq
    from petastorm import TransformSpec, make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    def as_arrays(frame: Any) -> Any:
        frame["x"] = [np.frombuffer(value, np.uint8) for value in frame["x"]]
        return frame

    files = files_of(folder)
    schema = pq.read_schema(files[0])
    spec = None
    if schema.names[0] == "x" and str(schema.field("x").type) == "binary":
        # The loader takes no binary; its documentation has it made arrays in the reader.
        spec = TransformSpec(as_arrays, edit_fields=[("x", np.uint8, (12288,), False)])
    reader = make_batch_reader(
        [f"file://{file}" for file in files],
        transform_spec=spec,
        workers_count=2,
        num_epochs=1,
        cur_shard=int(os.environ["RANK"]),
        shard_count=RANKS,
        shuffle_row_groups=True,
        seed=1,
    )
    # It begins again by itself when all rows have come.
    loader = BatchedDataLoader(reader, batch_size=BATCH, shuffling_queue_capacity=16 * BATCH)
    return later_epochs(lambda: iter(loader), seconds)


if __name__ == "__main__":
    peer_program(None, rate)
