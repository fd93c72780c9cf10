"""The files of a checkout, as the checks of the house read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = (".rs", ".py", ".pyi", ".scala", ".java")


class Tree:
    """The files of a checkout that git has or would add, below `root`, as text."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True,
            capture_output=True,
        )
        names = sorted(name for name in listed.stdout.decode().split("\0") if name)
        self.names = [name for name in names if (root / name).is_file()]

    def text(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def ending(self, *endings: str, below: str = "") -> list[str]:
        return [name for name in self.names if name.endswith(endings) and name.startswith(below)]


def is_test(name: str) -> bool:
    path = Path(name)
    return path.name == "tests.rs" or any(part in ("tests", "test", "benches") for part in path.parts[:-1])


def without_tests(name: str, text: str) -> tuple[str, str]:
    """The code of a file and its tests: of a Rust file what stands behind `#[cfg(test)]` is tests."""
    if is_test(name):
        return "", text
    if name.endswith(".rs"):
        code, mark, tests = text.partition("#[cfg(test)]\nmod tests {")
        return code, mark + tests
    return text, ""
