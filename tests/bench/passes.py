"""What the ranks of every way in tests/bench/data.py share: how rows a second are measured.

The programs of peers have it, too, in their own environments: it needs torch, and nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BATCH = 256
RANKS = 2
Passes = Callable[[], Iterator[Any]]


def measured(passes: Passes, seconds: float, most: float = 0) -> float:
    """Rows a second of this rank over whole passes, of which all ranks take as many; they begin together.

    A pass that is longer than `most` seconds, or four times as long as it should be, is left.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    dist.barrier()
    began, rows = time.monotonic(), 0
    end, last = began + seconds, began + max(4 * seconds, most)
    again = torch.ones(1)
    while again.item():
        rows += taken(passes, last)
        again.fill_(time.monotonic() < end)
        dist.all_reduce(again, dist.ReduceOp.MIN)
    return rows / (time.monotonic() - began)


def taken(passes: Passes, last: float) -> int:
    """The rows of one pass, which is left where it is not over by then."""
    rows = 0
    for batch in passes():
        rows += len(batch["label"])
        if time.monotonic() > last:
            break
    return rows


def files_of(folder: str) -> list[str]:
    return sorted(map(str, Path(folder).glob("*.parquet")))


def files_of_this_rank(folder: str) -> list[str]:
    return files_of(folder)[int(os.environ["RANK"]) :: RANKS]


# The longest pass of a peer: one that takes longer is left, and its rate is that of its beginning.
PEER_MOST_S = 8.0


def later_epochs(passes: Passes, seconds: float, most: float = PEER_MOST_S) -> float:
    """A peer's rows a second, after a first pass that nobody measures."""
    import torch

    torch.set_num_threads(1)
    # A pass of Petastorm's sometimes ends before its first row, where the machine is busy.
    while not taken(passes, time.monotonic() + most):
        pass
    return measured(passes, seconds, most)


def peer_program(
    convert: Callable[[str, str], None] | None, rate: Callable[[str, str, float], float]
) -> None:
    """The whole program of a peer, which prints one JSON object: its figure, or what the peer refuses.

    WITH_PEER.py convert FOLDER KEPT          makes what the peer reads from the Parquet files: how long it takes
    WITH_PEER.py read FOLDER KEPT SECONDS     as the rank that RANK says: rows a second
    """
    word, folder, kept, *seconds = sys.argv[1:]
    said: dict[str, object]
    try:
        if word == "convert":
            assert convert is not None
            began = time.monotonic()
            convert(folder, kept)
            said = {"converted": time.monotonic() - began}
        else:
            said = {"later": rate(folder, kept, float(seconds[0]))}
    except Exception as error:
        import traceback

        traceback.print_exc()
        said = {"refused": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    print(json.dumps(said), flush=True)
    os._exit(0)  # whatever threads are still busy
