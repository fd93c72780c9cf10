"""A rank that reads by Mosaic's StreamingDataset, shuffled, from shards that are made of the Parquet files."""

from __future__ import annotations

import sys
from multiprocessing import Pool
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from passes import BATCH, RANKS, files_of, later_epochs, peer_program

ENCODINGS = {
    "float": "float32",
    "double": "float64",
    "int64": "int64",
    "string": "str",
    "binary": "bytes",
    "list<element: float>": "ndarray:float32:784",
}


def write_shards(files: list[str], out: str) -> None:
    import pyarrow.parquet as pq
    from streaming import MDSWriter

    schema = pq.read_schema(files[0])
    columns = {field.name: ENCODINGS[str(field.type)] for field in schema}
    with MDSWriter(out=out, columns=columns) as writer:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(4096):
                values = [values_of(column) for column in batch.columns]
                for row in zip(*values, strict=True):
                    writer.write(dict(zip(schema.names, row, strict=True)))


def values_of(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_list(column.type):
        return column.flatten().to_numpy().reshape(len(column), -1)
    strings = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    return column.to_pylist() if strings else column.to_numpy()


def convert(folder: str, kept: str) -> None:
    from streaming.base.util import merge_index

    files = files_of(folder)
    parts = [(files[at::RANKS], f"{kept}/{at}") for at in range(RANKS)]
    with Pool(RANKS) as pool:
        pool.starmap(write_shards, parts)
    merge_index(kept)


def rate(folder: str, kept: str, seconds: float) -> float:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(local=kept, shuffle=True, batch_size=BATCH)
    loader: Any = DataLoader(dataset, batch_size=BATCH)
    return later_epochs(lambda: iter(loader), seconds)


if __name__ == "__main__":
    peer_program(convert, rate)
