"""Where things are in the repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "python"
"""The folder of the package under test."""
APPS = ROOT / "tests" / "apps"
CONTRACT = ROOT / "tests" / "contract"
