"""`TrainingError`: why a training run failed, told by the Rust core and raised at the caller.

RUN-3 (never-raises): making one never raises because of what came from the ranks, nor does pickling or copying it,
which keeps all that it tells. A cause that doesn't unpickle is left out. An `UnavailableResult` stands for a result
that doesn't pickle or unpickle. `tests/contract/errors.json` is the table from failure kinds to exceptions for all
languages.
"""

from __future__ import annotations

import base64
import copy
import pickle
from typing import Any, NamedTuple

from .plumbing.describe import describe_type
from .results import UnavailableResult


class RankOutcome(NamedTuple):
    """What became of one rank."""

    rank: int
    host: str
    """Empty while not known."""
    state: str
    """In words: `stopped`, `raised RuntimeError: ...`, `exited with code 3`."""
    idle_seconds: float | None
    """How long before the failure it last wrote output; None if it never did."""
    doing: str = ""
    """What it was doing before the ranks were ended, as far as is known: a collective operation."""


class UnpicklableError(TypeError, pickle.PicklingError):
    """A value that doesn't pickle: a `TypeError`, as Python itself raises mostly, and a `PicklingError`."""


class TrainingError(RuntimeError):
    """A training run failed.

    `str()` is the whole story; `__cause__` is the rank's own exception where it unpickles.

    kind            exception, signal, exit_code, out_of_memory, hang, lost_node, preempted, start or cancelled
    message         the cause in one sentence
    rank, host      the rank that failed first and its host; None and "" where no rank did
    exit_code, signal   how its process ended, where it did so
    exception_type, traceback   what the training code raised; "" where it didn't
    last_lines      its last lines of output, oldest first
    log_path        the file on `host` that has its whole output; "" if there is none
    restarts        how often the ranks had been started again before
    stacks          what the ranks' threads were doing, where they hung; "" else
    results         what ranks that had ended well returned, by rank; an `UnavailableResult` for each other one
    ranks           a `RankOutcome` for every rank
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
        self.ranks = [RankOutcome(**outcome) for outcome in fields.get("ranks", ())]
        cause = _unpickled(fields.get("pickle", ""))
        if cause is not None:
            self.__cause__ = cause

    @classmethod
    def from_failure(cls, failure: dict[str, Any], text: str) -> TrainingError:
        """The error for a Failure of the Rust core; `text` is the Failure as rendered there."""
        return cls(text, failure)

    def __reduce__(self) -> tuple[Any, ...]:
        told = vars(self) | {"results": [_pickled(rank, value) for rank, value in enumerate(self.results)]}
        return type(self), (str(self), self._failure), told

    def __setstate__(self, told: dict[str, Any] | None) -> None:
        vars(self).update(told or {})
        self.results = [_loaded(rank, value) for rank, value in enumerate(self.results)]

    def __copy__(self) -> TrainingError:
        return self._copied(dict(vars(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainingError:
        return self._copied(copy.deepcopy(vars(self), memo))

    def _copied(self, told: dict[str, Any]) -> TrainingError:
        other = type(self)(str(self), self._failure)
        vars(other).update(told)
        other.__cause__, other.__context__ = self.__cause__, self.__context__
        other.__suppress_context__ = self.__suppress_context__
        return other


def kind_and_text(error: BaseException) -> tuple[str, str]:
    """Why a run ended, for its snapshot: the kind of failure, and the whole story."""
    kind = getattr(error, "kind", "cancelled" if isinstance(error, KeyboardInterrupt) else "start")
    text = str(error) or type(error).__name__
    return str(kind), text.encode(errors="replace").decode()  # a path may have what is no character


def _pickled(rank: int, value: Any) -> bytes | UnavailableResult:
    import cloudpickle

    if isinstance(value, UnavailableResult):
        return value
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as problem:
        return UnavailableResult(
            f"rank {rank}: its result ({describe_type(value)}) doesn't pickle: {problem}"
        )
    return data


def _loaded(rank: int, kept: bytes | UnavailableResult) -> Any:
    if isinstance(kept, UnavailableResult):
        return kept
    try:
        return pickle.loads(kept)
    except Exception as problem:
        reason = f"rank {rank}: its result can't be read back here: {type(problem).__name__}: {problem}"
        return UnavailableResult(reason)


def _unpickled(text: str) -> BaseException | None:
    """The exception in base64 `text`; None where there is none or it can't be had here."""
    if not text:
        return None
    try:
        exc = pickle.loads(base64.b64decode(text))
    except Exception:
        return None
    return exc if isinstance(exc, BaseException) else None
