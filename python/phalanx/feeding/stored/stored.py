"""Data that is kept in a place of the user's, where later runs find it."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Stored(Generic[T]):
    """Stands for data that is kept; made by `stored`."""

    def __init__(self, data: T, uri: str) -> None:
        self.data = data
        self.uri = uri


def stored(data: T, uri: str) -> Stored[T]:
    """Data that the first run writes to `uri`, and that later runs read there, for
    `run(train, data={"train": phalanx.stored(df, "s3://bucket/clicks-v1")})`.

    data    a DataFrame. Where `uri` has the data already nothing is computed: only the columns are compared
    uri     a folder that all hosts share, or a URI that `fsspec` opens there. Another content needs another one

    Raises `TypeError` or `ValueError` for a `uri` that can't be one.
    """
    if not isinstance(uri, str):
        raise TypeError(f"uri has to be a str, not {type(uri).__name__}")
    if not uri.strip():
        raise ValueError("uri is empty, but has to be a folder that all hosts share, or a URI")
    return Stored(data, uri)
