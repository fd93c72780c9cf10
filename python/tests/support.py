"""Types and places that several tests use."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = PACKAGE_ROOT.parent


@dataclass
class RankRun:
    """How a rank ended and what it left."""

    code: int
    out: str
    err: str
    notes: list[str]
    directory: Path

    @property
    def result(self) -> Any:
        return pickle.loads((self.directory / "result").read_bytes())

    @property
    def error(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.directory / "error.json").read_text())
        return record

    @property
    def left(self) -> set[str]:
        return {entry.name for entry in self.directory.iterdir()}
