"""The names that a node and its ranks agree on are the same in Rust and in Python, as TYPES-1 says."""

from __future__ import annotations

import re

import pytest
from phalanx import _native
from phalanx.rank import contract
from support.places import PYTHON, ROOT

pytestmark = pytest.mark.timeout(60)

# A variable of ours in quotes, as code names it.
_NAMED = re.compile(r'"(PHALANX_\w+)"')


def test_the_contract_is_the_cores() -> None:
    assert _names() == _native.rank_contract(), "TYPES-1"


def test_each_name_of_the_contract_says_what_it_is() -> None:
    text = (PYTHON / "phalanx" / "rank" / "contract.py").read_text()
    assert re.findall(r'^([A-Z_]+) = "[^"]+"\n(?!""")', text, re.MULTILINE) == []


def test_no_variable_of_ours_is_named_elsewhere() -> None:
    """A name that stands twice can come to differ; documents may name it."""
    found = [
        f"{path.name}: {name}"
        for folder, kind in ((PYTHON / "phalanx", "*.py"), (ROOT / "rust", "*.rs"))
        for path in sorted(folder.rglob(kind))
        if path.stem != "contract" and not {"tests", "examples"} & set(path.parts)
        for name in _NAMED.findall(path.read_text().partition("#[cfg(test)]")[0])
    ]
    assert found == []


def test_a_variable_that_scala_names_is_of_the_contract() -> None:
    sources = (ROOT / "jvm" / "spark" / "src" / "main").rglob("*.scala")
    found = {name for path in sources for name in _NAMED.findall(path.read_text())}
    assert found <= set(_names().values()), "TYPES-1"


def _names() -> dict[str, str | int]:
    return {name: value for name, value in vars(contract).items() if name.isupper()}
