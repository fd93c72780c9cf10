"""A store as `torch.distributed.checkpoint` reads and writes it."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Iterator
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from ..plumbing.store import FolderStore, Store
from . import pickles

_METADATA = ".metadata"
_DESCRIBING = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}


class Writer(FileSystemWriter):
    """Writes into a folder of a store."""

    def __init__(self, store: Store, folder: str) -> None:
        # Of a store that is no folder nothing can be written through; torch would have the whole machine do it.
        in_folder = isinstance(store, FolderStore)
        super().__init__(store.path(folder), sync_files=in_folder)
        if not in_folder:
            self.fs, self.path = _Files(store), folder  # type: ignore[assignment]


class Reader(FileSystemReader):
    """Reads from a folder of a store; without `whole_pickles`, of what describes a checkpoint no more than that."""

    def __init__(self, store: Store, folder: str, *, whole_pickles: bool) -> None:
        super().__init__(store.path(folder))
        self._own, self._folder, self._whole_pickles = store, folder, whole_pickles
        if not isinstance(store, FolderStore):
            self.fs, self.path = _Files(store), folder  # type: ignore[assignment]

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if not self._whole_pickles:
            name = f"{self._folder}/{_METADATA}"
            with self._own.open(name) as file:
                _Described(file, self._own.path(name)).load()
        return super().read_metadata(*args, **kwargs)


class Planner(DefaultLoadPlanner):
    """Puts values in their places; without `whole_pickles`, plain ones only."""

    def __init__(self, path: str, *, whole_pickles: bool) -> None:
        super().__init__()
        self._path, self._whole_pickles = path, whole_pickles

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        if not self._whole_pickles:
            pickles.check_plain(value, self._path)
        super().load_bytes(read_item, value)


class _Described(pickle.Unpickler):
    """Reads what torch says of a checkpoint: its own plain classes, and nothing that could run."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        is_metadata = module == metadata.__name__ and isinstance(vars(metadata).get(name), type)
        if is_metadata or (module, name) in _DESCRIBING:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickles.refused(self._path, "load_sharded")


def files_of(store: Store, folder: str) -> set[str]:
    """The files that a checkpoint consists of, in the folder where it was written."""
    with store.open(f"{folder}/{_METADATA}") as file:
        metadata = pickle.load(file)
    return {_METADATA} | {part.relative_path for part in metadata.storage_data.values()}


class _Files(FileSystemBase):
    """What torch does with files, in a store that may have no rename."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with (self._store.open if mode == "rb" else self._store.create)(os.fspath(path)) as stream:
            yield stream

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}"

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        with self._store.open(os.fspath(path)) as file:
            self._store.publish(os.fspath(new_path), file.read())
        self._store.remove(os.fspath(path))

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def exists(self, path: str | os.PathLike[str]) -> bool:
        folder, _, name = os.fspath(path).rpartition("/")
        return name in self._store.sizes(folder)

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._store.remove(os.fspath(path))
