"""README's examples."""

from __future__ import annotations

import re
from pathlib import Path

from support.places import ROOT


def blocks(info: str) -> list[str]:
    """The blocks of code that begin with this word after the fence."""
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def python_example(folder: Path) -> Path:
    """The example in Python, pasted into a file of this folder."""
    path = folder / "example.py"
    path.write_text("\n".join(blocks("python")))
    return path
