"""A rank that takes random rows of Hugging Face's Dataset, whose Arrow files are mapped into memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from passes import BATCH, RANKS, files_of, later_epochs, peer_program


def convert(folder: str, kept: str) -> None:
    from datasets import Dataset

    Dataset.from_parquet(files_of(folder), cache_dir=kept)


def rate(folder: str, kept: str, seconds: float) -> float:
    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    whole = Dataset.from_parquet(files_of(folder), cache_dir=kept)
    binary = getattr(whole.features.get("x"), "dtype", None) == "binary"
    mine = split_dataset_by_node(whole, rank=int(os.environ["RANK"]), world_size=RANKS)
    # Its torch format loses the zeros at the end of binary, so that comes as Python's lists of bytes, as with ours.
    rows: Any = mine if binary else mine.with_format("torch")
    loader: Any = DataLoader(rows, sampler=BatchSampler(RandomSampler(rows), BATCH, False), batch_size=None)

    def passes() -> Iterator[Any]:
        for batch in loader:
            if binary:
                batch["label"] = torch.tensor(batch["label"])
            yield batch

    return later_epochs(passes, seconds)


if __name__ == "__main__":
    peer_program(convert, rate)
