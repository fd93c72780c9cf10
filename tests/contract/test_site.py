"""The site of docs/: `docs/conf.py` finds what is wrong with pages, and makes lists of what docstrings list."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
from pathlib import Path

import phalanx
import pytest
from support.places import ROOT

PROGRAM = ROOT / "target/docs-venv/bin/sphinx-build"
# Where `CI` is set Sphinx colours what it says, though no terminal reads it.
SPHINX = [
    PROGRAM,
    "--no-color",
    "--quiet",
    "--fail-on-warning",
    "--conf-dir",
    ROOT / "docs",
    "--builder",
    "dummy",
]


@pytest.mark.timeout(120)
@pytest.mark.skipif(not PROGRAM.exists(), reason="Sphinx is not there; `make check` installs it")
def test_links_to_nowhere_and_names_left_out_fail_the_build(tmp_path: Path) -> None:
    pages = {
        "README.md": "# Read\n\n## A heading: of two\n",
        "docs/index.md": (
            "# Start\n\n[good](../README.md#a-heading-of-two), [gone](gone.md), [no such](../README.md#nowhere)\n\n"
            "```{toctree}\n../README\n```\n"
        ),
        "docs/alone.md": "# In no menu\n",
    }
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [*SPHINX, tmp_path, tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert "'gone.md'" in done.stderr, "HOUSE-12"
    assert "'nowhere'" in done.stderr, "HOUSE-12"
    assert "a-heading-of-two" not in done.stderr, "HOUSE-12: anchors are GitHub's"
    assert "alone.md: WARNING: document isn't included in any toctree" in done.stderr
    for name in set(phalanx.__all__) - {"__version__", "checkpoint_dir"}:
        assert f"docs/reference.md lacks phalanx.{name}\n" in done.stderr, "HOUSE-13"
    assert "docs/reference.md lacks phalanx.checkpoint.load_sharded\n" in done.stderr, "HOUSE-13"


def test_a_docstrings_columns_become_a_list_with_every_argument() -> None:
    spec = importlib.util.spec_from_file_location("site_conf", ROOT / "docs/conf.py")
    assert spec is not None
    assert spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)

    docstring = (
        "Has `x`.\n\none, two   it is\n           long\nname_of_it of one more\n\nRaises:\n    E: `y`."
    )
    made = "Has ``x``.||``one``, ``two``|   it is|   long|``name_of_it``|   of one more||Raises:||``E``|   ``y``."
    assert list(conf.restructured(docstring.splitlines())) == made.split("|")
    told = [inspect.getdoc(kind) or "" for kind in (phalanx.TorchDistributor, phalanx.Options)]
    listed = list(conf.restructured("\n".join(told).splitlines()))
    arguments = set(inspect.signature(phalanx.TorchDistributor).parameters) - {"_ssl_conf", "num_workers"}
    assert {f"``{name}``" for name in arguments} <= set(listed), "each argument is told"
