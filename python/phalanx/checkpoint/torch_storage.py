"""A store as `torch.distributed.checkpoint` reads and writes it."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter

from ..plumbing.store import FolderStore, Store

_METADATA = ".metadata"


class Writer(FileSystemWriter):
    """Writes into a folder of a store."""

    def __init__(self, store: Store, folder: str) -> None:
        # Of a store that is no folder nothing can be written through; torch would have the whole machine do it.
        in_folder = isinstance(store, FolderStore)
        super().__init__(store.path(folder), sync_files=in_folder)
        if not in_folder:
            self.fs, self.path = _Files(store), folder  # type: ignore[assignment]


class Reader(FileSystemReader):
    """Reads from a folder of a store."""

    def __init__(self, store: Store, folder: str) -> None:
        super().__init__(store.path(folder))
        if not isinstance(store, FolderStore):
            self.fs, self.path = _Files(store), folder  # type: ignore[assignment]


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
