"""Blocks of files that only fsspec opens."""

from __future__ import annotations

from ...plumbing.store import is_uri


class StoredBlocks:
    """Fetches blocks of files that fsspec opens by their URIs; as `_native.BlockClient` does those of other hosts. How
    long a store may take is what it was opened with."""

    def fetch(self, host: str, file: str, start: int, length: int, into: str) -> None:
        """Writes `length` bytes of `file` from `start` on to the file `into`; `host` doesn't matter.

        Raises `FileNotFoundError` where it isn't there, and `RuntimeError` where it can't be read.
        """
        from fsspec.core import url_to_fs

        try:
            files, path = url_to_fs(file)
            found = files.cat_file(path, start=start, end=start + length)
        except FileNotFoundError:
            raise
        except Exception as problem:
            raise RuntimeError(f"{file} can't be read: {type(problem).__name__}: {problem}") from problem
        if len(found) != length:
            raise RuntimeError(f"{file} ends {length - len(found)} bytes before the end of a block")
        with open(into, "wb") as copy:
            copy.write(found)


def is_stored(file: str) -> bool:
    """Whether a block's file is one that only fsspec opens."""
    return is_uri(file)
