"""Results of ranks that could not be brought back."""

from __future__ import annotations


class UnavailableResult:
    """Stands for the result of a rank other than 0 that could not be brought back; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"UnavailableResult({self.reason!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnavailableResult) and other.reason == self.reason

    def __hash__(self) -> int:
        return hash(self.reason)


class MissingResultError(RuntimeError):
    """The training went well, and results of some ranks could not be brought back.

    results     what every rank returned, by rank; an `UnavailableResult` for each that is missing
    missing     why, by rank
    """

    def __init__(self, results: list[object]) -> None:
        self.results = results
        self.missing = {
            rank: value.reason for rank, value in enumerate(results) if isinstance(value, UnavailableResult)
        }
        first, reason = next(iter(self.missing.items()), (0, ""))
        named = reason if reason.startswith(f"rank {first}") else f"rank {first}: {reason}"
        more = f", and those of {len(self.missing) - 1} other ranks" if len(self.missing) > 1 else ""
        super().__init__(
            f"the training succeeded, but the result of rank {first} is missing{more}: {named}. The others are in this "
            "error's `results`, and in `run.results(strict=False)`"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.results,)
