"""The ranks' results at the driver: one file a rank, read when the caller asks.

The files live as long as the `Results`. However the application ends, they don't outlive it.

RUN-15 (nothing-lost): a result that can't be read back is no failure of the run. The error says whose it is, why,
which versions differ, and where its pickle stays until the application ends; it can be asked for again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from ..errors import TrainingError
from ..rank.results import versions
from ..results import MissingResultError, UnavailableResult

if TYPE_CHECKING:
    from .. import _native

logger = logging.getLogger("phalanx")

_MOST_TRAILER_BYTES = 1 << 10


class Results:
    """What the ranks of one run returned."""

    def __init__(self, num_ranks: int, work_dir: str) -> None:
        self._num_ranks = num_ranks
        self._work_dir = work_dir
        self._files = tempfile.TemporaryDirectory(
            prefix="phalanx-run-", dir=work_dir, ignore_cleanup_errors=True
        )
        self._shards_told = False

    def keep(self, hub: _native.Hub) -> None:
        """Takes over the files that the hub has received."""
        for rank in range(self._num_ranks):
            path = hub.result_path(rank)
            if path is not None:
                shutil.move(path, self._path(rank))

    def load(self, rank: int) -> Any:
        """A rank's value. That rank 0's has shards of DTensors is warned of once.

        Raises `TrainingError` where it can't be read back.
        """
        try:
            with open(self._path(rank), "rb") as file:
                value = pickle.load(file)
        except FileNotFoundError:
            if not os.path.isdir(self._files.name):
                problem = (
                    "the results were removed when the Spark application stopped; read them before it stops"
                )
                raise TrainingError(problem) from None
            return None  # a file that left by os._exit and had given none
        except Exception as error:
            problem = (
                f"rank {rank} succeeded, but its result can't be read back here: {type(error).__name__}: {error}; "
                + "".join(f"{difference}; " for difference in _differences(self._path(rank)))
                + f"its pickle is {self._outliving(rank)} until the application ends"
            )
            raise TrainingError(problem, {"message": problem, "rank": rank}) from error
        if rank == 0:
            self._tell_of_shards()
        return value

    def load_all(self, *, strict: bool = True) -> list[Any]:
        """Every rank's value, by rank; an `UnavailableResult` for one that is missing.

        Raises `MissingResultError` where one is missing, and `strict`; `TrainingError` where all are gone.
        """
        found = []
        for rank in range(self._num_ranks):
            try:
                found.append(self.load(rank))
            except TrainingError as error:
                if not os.path.isdir(self._files.name):
                    raise
                found.append(UnavailableResult(str(error)))
        if strict and any(isinstance(value, UnavailableResult) for value in found):
            raise MissingResultError(found)
        return found

    def load_what_there_is(self) -> list[Any]:
        """Every rank's value, by rank; an `UnavailableResult` for a rank that left none, or none that can be read."""
        return [self._load_if_any(rank) for rank in range(self._num_ranks)]

    def _path(self, rank: int) -> str:
        return os.path.join(self._files.name, f"rank-{rank}")

    def _outliving(self, rank: int) -> str:
        """Where a rank's pickle stays for those who have let go of the run."""
        kept = os.path.join(self._work_dir, f"{os.path.basename(self._files.name)}-rank-{rank}.pickle")
        if not os.path.exists(kept):
            try:
                os.link(self._path(rank), kept)
            except OSError:  # a file system without links
                return self._path(rank)
        return kept

    def _tell_of_shards(self) -> None:
        shards = _trailer(self._path(0)).get("shards")
        if shards and not self._shards_told:
            self._shards_told = True
            logger.warning(
                "Rank 0's result has only rank 0's shard of %s. To get whole tensors, return "
                "tensor.full_tensor(), or for a model get_model_state_dict(model, "
                "options=StateDictOptions(full_state_dict=True)).",
                "a DTensor" if shards == 1 else f"{shards} DTensors",
            )

    def _load_if_any(self, rank: int) -> Any:
        if not os.path.exists(self._path(rank)):
            return UnavailableResult(f"rank {rank} left no result")
        try:
            return self.load(rank)
        except TrainingError as error:
            return UnavailableResult(str(error))


def _differences(path: str) -> list[str]:
    """Which versions the rank that wrote this file had, and this process has not."""
    from importlib import metadata

    here = versions()
    differences = []
    for name, version in _trailer(path).get("versions", {}).items():
        own = here.get(name)
        if own is None:
            with contextlib.suppress(metadata.PackageNotFoundError):
                own = metadata.version(name)
        if own != version:
            differences.append(f"{name} is {version} at the rank and {own or 'missing'} here")
    return differences


def _trailer(path: str) -> dict[str, Any]:
    """What the rank wrote behind the pickle; empty where that can't be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _MOST_TRAILER_BYTES))
            found = json.loads(file.read().rpartition(b"\n")[2])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
