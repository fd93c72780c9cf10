"""How Sphinx makes the site of these pages: `make docs`. `make check` reads them the same way, and writes nothing.

HOUSE-12 (as-on-GitHub): the source folder is the repository's root, so that a link between pages is the same here and
there. A link to a page or a heading that is not there fails the build.
HOUSE-13 (all-names): the reference has every public name of `phalanx` and of `phalanx.checkpoint`. Each name of the
package that a page has can be imported from where the page says.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

project = "Phalanx"
release = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
extensions = ["myst_parser", "sphinx.ext.autodoc"]

# Paths are those of the repository; what isn't named here is no page.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "rust/torch/README.md"]
exclude_patterns = [".*", "jvm", "python", "target", "tests"]
# Headings have GitHub's anchors.
myst_heading_anchors = 4

# What the sources import, and nobody needs to have installed who only reads their docstrings.
autodoc_mock_imports = ["cloudpickle", "pyspark", "torch", "transformers"]
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"Phalanx {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
# The address that people type has the first page.
html_additional_pages = {"index": "start.html"}
templates_path = ["."]
html_theme_options = {"navigation_with_keys": True}

_MODULES = ("phalanx", "phalanx.checkpoint")
# What docstrings have for a list: a name or several, then what it is in a column of its own, or below `Raises:` after a
# colon.
_ITEM = re.compile(r"((?:\*\*)?\w+(?:, (?:\*\*)?\w+)*)( +)(\S.*)")
_RULE = re.compile(r"[A-Z]+-\d+ \(")
_RAISED = re.compile(r"    (\w+): (.*)")


def restructured(lines: list[str]) -> Iterator[str]:
    """A docstring of ours as reStructuredText: code in single backticks, and lists of names."""
    column, raises = 0, False
    for line in lines:
        item, raised = _ITEM.fullmatch(line), _RAISED.fullmatch(line)
        if item and (len(item[2]) > 1 or len(item[1]) + 1 == column):
            column = item.start(3)
            yield from (", ".join(f"``{name}``" for name in item[1].split(", ")), f"   {_marked(item[3])}")
        elif raises and raised:
            yield from (f"``{raised[1]}``", f"   {_marked(raised[2])}")
        elif column and line.startswith(" " * 8):
            yield f"   {_marked(line.strip())}"
        elif line == "Raises:":
            raises = True
            yield from ("Raises:", "")
        else:
            yield from ("",) * bool(_RULE.match(line))  # each a paragraph
            yield _marked(line)


def _marked(text: str) -> str:
    return re.sub(r"(?<![`\w:])`([^`]+)`(?![`_])", r"``\1``", text)


def _process(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = restructured(lines)


def _names_left_out(app: Any, _env: Any) -> None:
    from sphinx.util import logging

    documented = set(app.env.domains["py"].objects)
    for module in _MODULES:
        for name in importlib.import_module(module).__all__:
            if f"{module}.{name}" not in documented and not name.startswith("__") and name not in _ELSEWHERE:
                logging.getLogger(__name__).warning("docs/reference.md lacks %s.%s", module, name)


# `phalanx.checkpoint_dir` is the function of `phalanx.checkpoint`; a number needs no entry.
_ELSEWHERE = {"KEEP", "checkpoint_dir"}


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _process)
    app.connect("env-check-consistency", _names_left_out)
