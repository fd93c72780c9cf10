"""`phalanx.data`: a data set, in a rank by its name, and anywhere from a table."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..rank import contract
from ..rank.payload import Payload
from .blocks.index import Index
from .blocks.source import BlockSource, MappedBlocks, TableBlocks
from .loader.loader import Loader
from .loader.options import LoaderOptions
from .replicated import Replicated
from .stored.stored import Stored
from .stream.source import StreamSource
from .stream.streamed import Streamed

if TYPE_CHECKING:
    from .loader.dataset import BatchDataset


def data(source: Any) -> DataSet:
    """A data set: by the name that `TorchDistributor.run(train, data={name: df})` gave it, or from a table.

    A table may be Arrow's, pandas' or a Spark DataFrame that fits into memory; so the same code can be tried without a
    run. What is `stored` is read where it is, and written there first where it isn't yet. In a rank each rank takes its
    part of a table, unless it is `replicated`.

    Raises `RuntimeError` for a name outside a run, `ValueError` for a name that the run doesn't have, and `TypeError`
    for what is no table.
    """
    if isinstance(source, str):
        return _of_the_run(source)
    if isinstance(source, Streamed):
        raise TypeError(
            "a streamed data set needs a run: TorchDistributor.run(train, data={name: streamed(df)})"
        )
    whole = isinstance(source, Replicated)
    inner = source.data if whole else source
    if isinstance(inner, Stored):
        return DataSet(_stored_blocks(source, inner))
    return DataSet(TableBlocks(_table(inner), whole=whole))


def _stored_blocks(source: Any, inner: Stored[Any]) -> MappedBlocks:
    """The blocks of what is stored, as a run has them."""
    from ..plumbing.own_folder import own_folder
    from .preparation import Preparation

    name = "stored"
    preparation = Preparation(inner.data.sparkSession, {name: source}, local_mode=True)
    try:
        index = Index.read(preparation.run()[name])
    finally:
        preparation.remove()
    return MappedBlocks(index, folder=own_folder())


class DataSet:
    """The rows of a data set; `loader` gives them in batches."""

    def __init__(self, source: BlockSource) -> None:
        self._source = source

    @property
    def rows(self) -> int:
        """How many rows there are, on all ranks together."""
        return sum(self._source.rows)

    def loader(
        self,
        *,
        batch_size: int,
        shuffle: bool | str = False,
        seed: int = 0,
        uneven: str = "drop",
        nulls: Any = "error",
        pad: Any = None,
        transform: Callable[[Any], Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Loader:
        """This rank's batches, each a dictionary of tensors by column; every rank has the same number of them.

        batch_size      rows of a batch; all ranks together take `batch_size` times the number of ranks in a step
        shuffle         True: blocks, and rows within windows of at least 16 blocks. "full": all rows. False: not at all
        seed            which of the orders; each epoch has another
        uneven          what becomes of the last rows, too few for a step: "drop" leaves them out, "wrap" takes rows of
                        the epoch's beginning once more, "pad" does so and tells by `batch["mask"]` which rows count
        nulls           the value that stands for nulls in tensors; "error" refuses columns that have some
        pad             the value to pad arrays of different lengths with, or "jagged" for a nested tensor of torch's
                        jagged layout; without one they are lists of tensors, and with "list" all arrays are
                        Both may be a dictionary, by column; what it doesn't name is as without
        transform       called in the rank with each batch as a `pyarrow.RecordBatch`; what it returns is the batch
        rank, world_size    another part than this rank's own

        Raises `ValueError` or `TypeError` where a column can't be a tensor, and for arguments that can't be.
        """
        options = LoaderOptions(
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            uneven=uneven,
            nulls=nulls,
            pad=pad,
            transform=transform,
            rank=rank,
            world_size=world_size,
        )
        return self._loader(options)

    def _loader(self, options: LoaderOptions) -> Loader:
        if self._source.whole:
            options = dataclasses.replace(options, rank=0, world_size=1)
        return Loader(self._source, options)

    def dataset(self, **options: Any) -> BatchDataset:
        """A `torch.utils.data.IterableDataset` of the batches that `loader(**options)` gives, for code that wants
        `DataLoader(dataset, batch_size=None, num_workers=2)`."""
        from .loader.dataset import BatchDataset

        return BatchDataset(self.loader(**options))


class StreamedDataSet(DataSet):
    """The rows of a streamed data set: they come once, in one loader, in Spark's order, whatever the `seed`."""

    def __init__(self, source: StreamSource) -> None:
        self._stream = source

    @property
    def rows(self) -> int:
        """Refused: nobody knows before the end."""
        raise TypeError(f"the data set {self._stream.name!r} is streamed, so its number of rows is not known")

    def _loader(self, options: LoaderOptions) -> Loader:
        from .stream.loader import StreamLoader

        if options.rank is not None or options.world_size is not None:
            raise ValueError(
                f"the data set {self._stream.name!r} is streamed, so a rank has the rows that come to it: "
                "rank and world_size can't be given"
            )
        return StreamLoader(self._stream, options)


# The streams of this process, by name: whoever asks for one again has the same, whose rows come once.
_streams: dict[str, StreamSource] = {}


def _of_the_run(name: str) -> DataSet:
    path = os.environ.get(contract.ENV_PAYLOAD)
    if path is None:
        raise RuntimeError(
            f"there is no data set {name!r} here: names work only in code that TorchDistributor.run(train, "
            f"data={{...}}) runs; elsewhere give phalanx.data a DataFrame or a table"
        )
    there = Payload(path).data
    if name not in there:
        has = ", ".join(map(repr, there)) or "none"
        raise ValueError(
            f"the run has no data set {name!r}; it has {has} (TorchDistributor.run(train, data=...))"
        )
    address = there[name].get("stream")
    if address is not None:
        return StreamedDataSet(_streams.setdefault(name, StreamSource(name, address)))
    folder = os.environ[contract.ENV_RANK_DIR]
    shared = os.path.join(folder, contract.FILE_FETCHED)
    return DataSet(MappedBlocks(Index.read(there[name]), _access(folder), folder, shared))


def _access(folder: str) -> bytes | None:
    """How this rank fetches blocks of other hosts; None where the run has ranks on one host only."""
    try:
        with open(os.path.join(folder, contract.FILE_BLOCKS), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _table(source: Any) -> Any:
    import pyarrow as pa

    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return source
    kind = type(source).__module__.partition(".")[0]
    if kind == "pandas" and hasattr(source, "columns"):
        return pa.Table.from_pandas(source, preserve_index=False)
    if kind == "pyspark" and hasattr(source, "mapInArrow"):
        from .given import readable

        frame = readable("table", source)
        # Spark 3.5 has no toArrow.
        return frame.toArrow() if hasattr(frame, "toArrow") else pa.Table.from_pandas(frame.toPandas())
    raise TypeError(
        "phalanx.data takes the name of a data set of the run, a Spark or pandas DataFrame, or an Arrow table, "
        f"not {type(source).__name__}"
    )
