"""What `Run.results` has in place of a result that could not be brought back."""

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
