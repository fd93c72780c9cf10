"""The lines of Spark that Phalanx is for: the one place where their versions stand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MATRIX = ROOT / "target" / "matrix"
"""Where each line has its environment."""


@dataclass(frozen=True)
class Line:
    """A minor version of Spark: what pip has of it, and what Maven has, the first release and the newest one there."""

    name: str
    pyspark: str
    maven: tuple[str, ...] = ()
    scalas: tuple[str, ...] = ()
    """The Scala libraries of Maven's builds."""
    artifacts: tuple[str, ...] = ()
    """Maven's artifacts that have what the jar refers to."""
    connect: str = ""
    """Maven's Spark Connect server, where pip's pyspark has none."""
    connect_plugin: str = ""
    """The one of Maven's releases with whose Spark Connect server its plugin's links are checked."""

    @property
    def environment(self) -> Path:
        return MATRIX / self.name

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def jars(self) -> Path | None:
        """The folder with the jars of its pyspark, once that is installed; the newest is in `.venv`."""
        folder = ROOT / ".venv" if self is LINES[-1] else self.environment
        found = sorted(folder.glob("lib/python*/site-packages/pyspark/jars"))
        return found[0] if found else None


_COMMON = (
    "spark-core",
    "spark-sql",
    "spark-catalyst",
    "spark-unsafe",
    "spark-sql-api",
    "spark-common-utils",
    "spark-network-common",
    "spark-kvstore",
)
_NEWER = (*_COMMON, "spark-common-utils-java")

LINES = (
    Line("3.5", "3.5.9", ("3.5.0", "3.5.9"), ("2.12.18", "2.13.8"), _COMMON, "spark-connect_2.12:3.5.7"),
    Line("4.0", "4.0.5", ("4.0.0", "4.0.4"), ("2.13.16",), _COMMON, connect_plugin="4.0.0"),
    Line("4.1", "4.1.4", ("4.1.0", "4.1.3"), ("2.13.17",), _NEWER, connect_plugin="4.1.3"),
    Line("4.2", "4.2.1", ("4.2.0",), ("2.13.18",), _NEWER, connect_plugin="4.2.0"),
    Line("4.3", "4.3.0"),
)
