"""A place for files that outlast a run: a folder, or whatever `fsspec` opens by a URI.

PLUMBING-5 (few-imports): fsspec is imported for a URI only, and never for `file:`, `local:` and `dbfs:/Volumes/`, which
are folders.
PLUMBING-8 (one-maker): of several that make a new file in a folder at the same time one does, and the others see the
whole of it. A URI's store does that as well as it can.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any, BinaryIO, Protocol

from .whole_file import whole_or_absent, write_through

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)
_FOLDERS = re.compile(r"(?:file|local):(?://(?:localhost)?(?=/))?(?P<path>/.*)", re.DOTALL)
_VOLUME = re.compile(r"dbfs:(?://)?(?P<path>/Volumes/.*)", re.DOTALL)


class Store(Protocol):
    """A folder, and what is done with it."""

    publishes_files: bool
    """Whether a file that was not written to its end is never seen under its name."""

    def path(self, name: str) -> str:
        """What a user opens a file or folder by."""

    def sizes(self, folder: str = "") -> dict[str, int]:
        """What is there, or in a folder there, by name; a folder's size is 0. Empty if it isn't there."""

    def create(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A new file to write; it is gone where the block raises. `OSError` where it can't be written."""

    def written_at(self, name: str) -> float | None:
        """When a file, or something in a folder, was last written, in seconds since 1970; None where nothing tells."""

    def open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A file to read, of which any part can be sought."""

    def settle(self, folder: str) -> None:
        """What is in a folder now outlasts a loss of power, where that is possible."""

    def publish(self, name: str, content: bytes) -> None:
        """Writes a small file, at once where the store can do that."""

    def create_new(self, name: str, content: bytes) -> bool:
        """Writes a small file if there is none of that name; returns whether it did."""

    def is_users(self, name: str) -> bool:
        """Whether a file, or all that is in a folder, is this process's user's; False where nothing tells."""

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with all that is in it. One that isn't there is no error."""


def is_uri(path: str) -> bool:
    """Whether this is a URI of something else than a folder of this machine."""
    return _SCHEME.fullmatch(path) is not None and _folder_of(path) is None


def _anybody() -> str:
    return os.urandom(8).hex()


def open_store(path: str, writer: Callable[[], str] = _anybody) -> Store:
    """The store at a folder's path or a URI; `writer` names who writes a file, while it is not whole.

    Raises `ImportError` where fsspec has no such file system here.
    """
    return UriStore(path) if is_uri(path) else FolderStore(_folder_of(path) or path, writer)


def _folder_of(path: str) -> str | None:
    match = _FOLDERS.fullmatch(path) or _VOLUME.fullmatch(path)
    return None if match is None else match["path"]


class FolderStore:
    """A folder of a file system that renames files at once."""

    publishes_files = True

    def __init__(self, folder: str, writer: Callable[[], str] = _anybody) -> None:
        self.folder = os.path.abspath(folder)
        self._writer = writer

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def sizes(self, folder: str = "") -> dict[str, int]:
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path(folder)) as items:
            for item in items:
                with contextlib.suppress(FileNotFoundError):  # another rank was quicker
                    found[item.name] = 0 if item.is_dir() else item.stat().st_size
        return found

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with whole_or_absent(path, part=f"{path}.part-{self._writer()}", durable=True) as file:
            yield file

    def written_at(self, name: str) -> float | None:
        path = self.path(name)
        with contextlib.suppress(FileNotFoundError):  # another rank was quicker
            inside = [os.path.join(path, each) for each in os.listdir(path)] if os.path.isdir(path) else []
            return max(os.stat(each).st_mtime for each in (path, *inside))
        return None

    def open(self, name: str) -> BinaryIO:
        return open(self.path(name), "rb")

    def settle(self, folder: str) -> None:
        write_through(self.path(folder))

    def publish(self, name: str, content: bytes) -> None:
        with self.create(name) as file:
            file.write(content)

    def create_new(self, name: str, content: bytes) -> bool:
        path = self.path(name)
        part = f"{path}.part-{self._writer()}"
        os.makedirs(self.folder, exist_ok=True)
        try:
            with open(part, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(part, path)
            except FileExistsError:
                return False
            except OSError:  # a mounted store, which has no second names
                with open(path, "xb") as file:
                    file.write(content)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)
        write_through(self.folder)
        return True

    def is_users(self, name: str) -> bool:
        path, user = self.path(name), os.geteuid()
        try:
            inside = [os.path.join(at, each) for at, _, files in os.walk(path) for each in files]
            return all(os.stat(each).st_uid == user for each in (path, *inside))
        except OSError:  # another rank was quicker
            return False

    def remove(self, name: str) -> None:
        path = self.path(name)
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):  # another rank was quicker
                os.unlink(path)


class UriStore:
    """What fsspec opens. It has to list, to read, and to write a file from its beginning to its end; no more."""

    publishes_files = False

    def __init__(self, uri: str) -> None:
        from fsspec.core import url_to_fs

        match = _SCHEME.fullmatch(uri)
        rest = "" if match is None else match["rest"]
        if match is not None and not rest.startswith((":", "//")):
            uri = f"{match[1]}://{rest}"  # fsspec takes `memory:/x` for a file's name
        self._uri = uri.rstrip("/")
        self._fs, root = url_to_fs(uri)
        self._root = str(root).rstrip("/")

    def path(self, name: str) -> str:
        return f"{self._uri}/{name}"

    def sizes(self, folder: str = "") -> dict[str, int]:
        self._fs.invalidate_cache()
        try:
            items = self._fs.ls(self._inside(folder), detail=True)
        except FileNotFoundError:
            return {}
        found = {}
        for item in items:
            name = str(item["name"]).rstrip("/").rpartition("/")[2]
            found[name] = 0 if item.get("type") == "directory" else int(item.get("size") or 0)
        return found

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        path = self._inside(name)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with self._fs.open(path, "wb") as file:
                yield file
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(path)
            raise

    def written_at(self, name: str) -> float | None:
        with contextlib.suppress(Exception):  # not every file system knows, and they say so in many ways
            files = self._fs.find(self._inside(name))
            return max((_seconds(self._fs.modified(file)) for file in files), default=None)
        return None

    def open(self, name: str) -> Any:
        return self._fs.open(self._inside(name), "rb")

    def settle(self, folder: str) -> None:
        pass

    def publish(self, name: str, content: bytes) -> None:
        self._fs.pipe_file(self._inside(name), content)

    def create_new(self, name: str, content: bytes) -> bool:
        path = self._inside(name)
        self._fs.makedirs(self._root, exist_ok=True)
        self._fs.invalidate_cache()
        if self._fs.exists(path):
            return False
        try:
            self._fs.pipe_file(path, content, mode="create")
        except FileExistsError:
            return False
        except Exception:  # a file system, or an fsspec, that knows no such mode
            self._fs.invalidate_cache()
            if self._fs.exists(path):
                return False
            self._fs.pipe_file(path, content)
        return True

    def is_users(self, name: str) -> bool:
        return False

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._inside(name), recursive=True)

    def _inside(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def _seconds(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
