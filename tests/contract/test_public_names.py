"""Names of the Python package in the pages: each can be imported from where the pages say that it is."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path
from typing import Any

import phalanx
import pytest
from support.places import PYTHON, ROOT

pytestmark = pytest.mark.timeout(120)

# What looks like a name of Python's and is one of something else: tags of MLflow's runs, and a file of the wheel.
_OTHERS = {"phalanx.failure", "phalanx.cause", "phalanx.reports_left_out", "phalanx.cdx.json"}
_NAME = re.compile(
    r"(?<![\w./:-])phalanx(?:\.[A-Za-z_]\w*)+"
)  # spark.phalanx.logs is a setting, dev.phalanx Scala's
_IMPORT = re.compile(r"from (phalanx[\w.]*) import ([\w ,]+)")
_REFERENCE = (ROOT / "docs/reference.md").read_text()


def pages(*captions: str) -> list[Path]:
    """The pages that the menus of these captions have."""
    found = []
    menu = re.compile(r"```\{toctree\}\n:caption: (.*)\n(?::.*\n)*\n((?:.+\n)+?)```")
    for caption, lines in menu.findall((ROOT / "docs/index.md").read_text()):
        if caption in captions:
            names = [line.rpartition("<")[2].rstrip(">") for line in lines.splitlines()]
            found += [(ROOT / "docs" / f"{name}.md").resolve() for name in names]
    assert len(found) > len(captions), captions
    return found


EVERY_PAGE = pages("Use", "Operate", "Look up")
USERS_PAGES = pages("Use", "Operate")


def imported(name: str) -> Any:
    """What this dotted name is; raises `ImportError` or `AttributeError` where it is nothing."""
    first, *parts = name.split(".")

    def inside(found: tuple[Any, str], part: str) -> tuple[Any, str]:
        holder, path = found
        if not hasattr(holder, part):
            importlib.import_module(f"{path}.{part}")
        return getattr(holder, part), f"{path}.{part}"

    return reduce(inside, parts, (importlib.import_module(first), first))[0]


def said(text: str) -> Iterator[str]:
    """The names with their place that a page has."""
    yield from _NAME.findall(text)
    for module, names in _IMPORT.findall(text):
        yield from (f"{module}.{name.split(' as ')[0].strip()}" for name in names.split(","))


def is_there(name: str) -> bool:
    try:
        imported(name)
    except (ImportError, AttributeError):
        return False
    return True


@cache
def public_classes() -> set[str]:
    """The classes of the package that could be a user's."""
    trees = [ast.parse(file.read_text()) for file in (PYTHON / "phalanx").rglob("*.py")]
    classes = {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    return {name for name in classes if not name.startswith("_")}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_each_name_that_a_page_has_can_be_imported_from_there(page: Path) -> None:
    names = set(said(page.read_text())) - _OTHERS
    assert [name for name in sorted(names) if not is_there(name)] == [], "HOUSE-13"


@pytest.mark.parametrize("page", USERS_PAGES, ids=lambda page: page.name)
def test_a_class_that_a_page_for_users_names_alone_is_phalanxs_or_has_its_place_there(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"`([A-Z]\w*)(?:\([^`]*\))?`", text)) & public_classes()
    placed = {name.rpartition(".")[2] for name in said(text)}
    assert sorted(named - placed - set(phalanx.__all__)) == [], "HOUSE-13"


def test_the_reference_has_names_where_they_can_be_imported() -> None:
    module, found = "", []
    for directive, name in re.findall(r"\.\. (currentmodule|auto\w+):: ([\w.]+)", _REFERENCE):
        if directive == "currentmodule":
            module = name
        else:
            found.append(name if name.startswith("phalanx") else f"{module}.{name}")
    assert len(found) > 20
    assert [name for name in found if not is_there(name)] == [], "HOUSE-13"


def test_what_the_package_offers_is_what_can_be_imported_from_it() -> None:
    assert [name for name in phalanx.__all__ if not is_there(f"phalanx.{name}")] == []
    assert sorted(set(phalanx._HOMES) - set(phalanx.__all__)) == []


def test_names_are_told_from_what_looks_alike() -> None:
    text = (
        "`spark.phalanx.logs`, `dev.phalanx.spark.Run`, https://a/phalanx.html, `phalanx.run(x)`,\n"
        "from phalanx import a, b as c"
    )
    assert list(said(text)) == ["phalanx.run", "phalanx.a", "phalanx.b"]
    assert is_there("phalanx.checkpoint.save")
    assert is_there("phalanx.run.events")
    assert not is_there("phalanx.checkpoint.load")
    assert not is_there("phalanx.nowhere.Name")
