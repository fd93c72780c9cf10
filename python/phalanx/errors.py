"""`TrainingError`: why a training run failed, told by the Rust core and raised at the caller.

ERROR-1: making one never raises because of what came from the ranks: a cause that doesn't unpickle is left
out. `tests/contract/errors.json` is the table from failure kinds to exceptions for all languages.
"""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any, NamedTuple


class RankReport(NamedTuple):
    """What one rank was doing when the job failed."""

    rank: int
    host: str
    """Empty while not known."""
    state: str
    """In words: `stopped`, `raised RuntimeError: ...`, `exited with code 3`."""
    idle_seconds: float | None
    """How long before the failure it last wrote output; None if it never did."""
    doing: str = ""
    """What it was doing before the ranks were ended, as far as is known: a collective operation."""


class TrainingError(RuntimeError):
    """A training run failed.

    `str()` is the whole story; `__cause__` is the rank's own exception where it unpickles.

    kind            exception, signal, exit_code, out_of_memory, hang, lost_node, start or cancelled
    message         the cause in one sentence
    rank, host      the rank that failed first and its host; None and "" where no rank did
    exit_code, signal   how its process ended, where it did so
    exception_type, traceback   what the training code raised; "" where it didn't
    last_lines      its last lines of output, oldest first
    log_path        the file on `host` that has its whole output; "" if there is none
    restarts        how often the ranks had been started again before
    stacks          what the ranks' threads were doing, where they hung; "" else
    results         what ranks that had ended well returned, by rank; an `UnavailableResult` for each other one
    ranks           a `RankReport` for every rank
    """

    def __init__(self, text: str, failure: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        fields = failure or {}
        self._failure = fields
        self.kind: str = fields.get("kind", "exception")
        self.message: str = fields.get("message", text)
        self.rank: int | None = fields.get("rank")
        self.host: str = fields.get("host", "")
        self.exit_code: int | None = fields.get("exit_code")
        self.signal: int | None = fields.get("signal")
        self.exception_type: str = fields.get("exception_type", "")
        self.traceback: str = fields.get("traceback", "")
        self.last_lines: list[str] = list(fields.get("last_lines", ()))
        self.log_path: str = fields.get("log_path", "")
        self.restarts: int = fields.get("restarts", 0)
        self.stacks: str = fields.get("stacks", "")
        self.results: list[Any] = []
        self.ranks = [RankReport(**report) for report in fields.get("ranks", ())]
        cause = _unpickled(fields.get("pickle", ""))
        if cause is not None:
            self.__cause__ = cause

    @classmethod
    def from_failure(cls, failure: dict[str, Any], text: str) -> TrainingError:
        """The error for a Failure of the Rust core; `text` is the Failure as rendered there."""
        return cls(text, failure)

    @classmethod
    def from_json(cls, failure: str | bytes, text: str) -> TrainingError:
        """As `from_failure`, from JSON."""
        return cls(text, json.loads(failure))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self._failure)


class ChainedException:
    """Pickles as its exception, but with `__cause__`, `__context__` and `__suppress_context__`.

    Exceptions themselves leave these behind when they are pickled. A link that doesn't pickle ends the chain
    there.
    """

    MAX_LINKS = 10

    def __init__(self, exc: BaseException, links: int = MAX_LINKS) -> None:
        self.exc = exc
        self.links = links

    def __reduce__(self) -> tuple[Any, ...]:
        def link(exc: BaseException | None) -> ChainedException | None:
            if exc is None or self.links == 0 or not _pickles(exc):
                return None
            return ChainedException(exc, self.links - 1)

        exc = self.exc
        return rejoined, (exc, link(exc.__cause__), link(exc.__context__), exc.__suppress_context__)


def rejoined(
    exc: BaseException, cause: BaseException | None, context: BaseException | None, suppress: bool
) -> BaseException:
    """The exception with its chain again; what `ChainedException` unpickles by."""
    exc.__cause__, exc.__context__, exc.__suppress_context__ = cause, context, suppress
    return exc


def _pickles(exc: BaseException) -> bool:
    import cloudpickle

    try:
        return isinstance(pickle.loads(cloudpickle.dumps(exc)), BaseException)
    except Exception:
        return False


def _unpickled(text: str) -> BaseException | None:
    """The exception in base64 `text`; None where there is none or it can't be had here."""
    if not text:
        return None
    try:
        exc = pickle.loads(base64.b64decode(text))
    except Exception:
        return None
    return exc if isinstance(exc, BaseException) else None
