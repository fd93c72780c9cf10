"""A place where a data set is kept: a folder with blocks, and an index beside it, by which later runs find them.

FEED-14 (index-last): the index is written when all blocks are there. Without one there is no data.
FEED-15 (same-columns): what is there is taken for a DataFrame only if names and types of the columns are the same.
FEED-16 (no-strays): a preparation that fails removes what it wrote. What repeated tasks wrote is removed, too, and what
a run wrote that another one was ahead of.
FEED-69 (same-query): whether it was another query that has filled the place can be told.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from ...plumbing.store import open_store
from ..blocks.index import Index

INDEX = "phalanx-data.json"
_VERSION = 2
# What an older Phalanx has written: it knows no identity of the rows, and no query.
_READABLE = (1, 2)


class DataStore:
    """The data set at a folder's path or a URI.

    Raises `ImportError` where fsspec has no such file system here, and `ValueError` where the index there is none that
    can be read.
    """

    def __init__(self, uri: str) -> None:
        self._store = open_store(uri)
        self.place = self._store.path("").rstrip("/") or "/"
        self._found = self._read()

    @property
    def is_filled(self) -> bool:
        """Whether the data is there."""
        return self._found is not None

    @property
    def origin(self) -> str:
        """Who wrote what is there, and when."""
        return "" if self._found is None else str(self._found["origin"])

    def differs(self, columns: list[list[str]]) -> str | None:
        """What is different about these columns (names and types) and those that are there; None if nothing is."""
        there = columns if self._found is None else self._found["columns"]
        if there == columns:
            return None
        missing = [column for column in there if column not in columns]
        more = [column for column in columns if column not in there]
        if not missing and not more:
            return "it has the same columns in another order"
        parts = [
            f"{said} {', '.join(f'{name} {kind}' for name, kind in some)}"
            for said, some in (("it has", missing), ("the DataFrame has", more))
            if some
        ]
        return " and ".join(parts)

    def is_of_another_query(self, query: dict[str, str]) -> bool:
        """Whether a different query has filled the place. Spark's versions describe the same one
        differently, so only one of the same version can tell."""
        there = None if self._found is None else self._found.get("query")
        return there is not None and there["spark"] == query["spark"] and there["digest"] != query["digest"]

    def index(self, name: str, *, whole: bool) -> Index:
        """What is there, as the data set `name` of a run."""
        assert self._found is not None
        index = Index.read(self._found["index"])
        files = [self._store.path(file) for file in index.files]
        return index._replace(name=name, whole=whole, files=files)

    def path(self, folder: str) -> str:
        """Where tasks are to write the blocks of a new folder."""
        return self._store.path(folder)

    def keep(
        self,
        index: Index,
        folder: str,
        columns: list[list[str]],
        application: str,
        query: dict[str, str],
    ) -> Index:
        """Has later runs find the blocks of `index`, which tasks wrote into `folder`; the index of what is there now.
        That is another run's where one was ahead of this.

        Raises `RuntimeError` where a block's file isn't there, and `ValueError` where the other run's columns are
        others.
        """
        names = [f"{folder}/{file.rpartition('/')[2]}" for file in index.files]
        there = {f"{folder}/{name}" for name in self._store.sizes(folder)}
        for name, host in zip(names, index.hosts, strict=True):
            if name not in there:
                raise RuntimeError(
                    f"{host} wrote blocks to {self._store.path(name)}, but the driver doesn't see them: "
                    f"{self.place} has to be a folder that all hosts share, or a URI"
                )
        for stray in there - set(names):
            with contextlib.suppress(OSError):  # it is harmless
                self._store.remove(stray)
        self._store.settle(folder)
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        packed = index._replace(files=names, hosts=[""] * len(names)).pack()
        found = {
            "version": _VERSION,
            "origin": f"written {when} by the application {application}",
            "columns": columns,
            "query": query,
            "index": packed,
        }
        if self._store.create_new(INDEX, json.dumps(found).encode()):
            self._found = found
        else:
            self.abandon(folder)
            self._found = self._read()
            difference = self.differs(columns)
            if difference is not None:
                raise ValueError(
                    f"another run has filled {self.place} meanwhile ({self.origin}): {difference}"
                )
        return self.index(index.name, whole=index.whole)

    def abandon(self, folder: str) -> None:
        """Removes what tasks wrote into `folder`, as far as it can be."""
        with contextlib.suppress(Exception):
            self._store.remove(folder)

    def _read(self) -> dict[str, Any] | None:
        if INDEX not in self._store.sizes():
            return None
        with self._store.open(INDEX) as file:
            text = file.read()
        try:
            found: dict[str, Any] = json.loads(text)
            version = found["version"]
            if version in _READABLE:
                Index.read(found["index"])
        except (ValueError, KeyError, TypeError) as problem:
            raise ValueError(
                f"{self._store.path(INDEX)} is not an index of a data set ({problem}); remove it, and the next run "
                "writes the data again"
            ) from problem
        if version not in _READABLE:
            raise ValueError(
                f"{self._store.path(INDEX)} has version {version}, but this Phalanx reads versions up to {_VERSION}; "
                "give the data set another place"
            )
        return found
