"""A run in a notebook's cell, executed by a kernel; and its page in a browser."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import nbformat
import pytest
from phalanx import _native
from support import notebooks
from support.snapshots import snapshot
from support.tiers import whole

SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
from phalanx import TorchDistributor, TrainingError
distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
"""

TRAIN = """
def train(fails):
    import os, time, phalanx
    print("<script>document.title = 'owned'</script>")
    for step in range(1, 5):
        phalanx.report(step=step, of=4, loss=1 / step)
        time.sleep(0.6)
    if fails and os.environ["RANK"] == "1":
        raise KeyError("<b>labels</b>")
"""

CELLS = [
    SESSION,
    TRAIN,
    "distributor.run(train, False)",
    """
try:
    distributor.run(train, True)
except TrainingError:
    print("it failed")
""",
    "run = distributor.start(train, False)\nrun",
    "run.result()\nimport time\ntime.sleep(0)\nrun",
    "distributor = TorchDistributor(2, True, False, progress='off')\ndistributor.run(train, False)",
    "run.plot()",
    "spark.stop()",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    return notebooks.run(notebook, tmp_path_factory.mktemp("display"))


def pages(notebook: Any, cell: int) -> list[str]:
    """The pages in the output of a cell."""
    found = [
        output["data"].get("text/html", "") for output in notebook.cells[cell].outputs if "data" in output
    ]
    return [text for text in found if "phalanx-run" in text]


@pytest.mark.timeout(300)
@whole("a notebook of its own")
def test_a_cell_that_runs_has_one_page_and_below_it_the_output_of_the_ranks(executed: Any) -> None:
    [text] = pages(executed, 2)
    for part in (">succeeded<", "local mode", "step 4 of 4", "<b>100%</b>", "polyline", "finished"):
        assert part in text, part
    printed = "".join(output.get("text", "") for output in executed.cells[2].outputs)
    assert "[rank 0] <script>" in printed
    assert "[rank 1] <script>" in printed


@whole("a notebook of its own")
def test_a_failure_is_a_card_with_its_rank_and_traceback_as_text(executed: Any) -> None:
    [text] = pages(executed, 3)
    for part in (
        ">failed<",
        "Failed: rank 1",
        "raised KeyError",
        "&lt;b&gt;labels&lt;/b&gt;",
        "<details",
        "Traceback",
    ):
        assert part in text, part
    assert "<script>" not in text, "PAGE-1"


@whole("a notebook of its own")
def test_a_run_that_a_cell_shows_is_drawn_until_it_is_over(executed: Any) -> None:
    for cell in (4, 5):
        [text] = pages(executed, cell)
        assert ">succeeded<" in text or cell == 4, text
    assert pages(executed, 6) == [], "progress='off'"
    [figure] = executed.cells[7].outputs
    assert "image/png" in figure["data"]


@whole("a terminal in place of a cell")
@pytest.mark.timeout(180)
def test_a_terminal_has_a_line_that_goes_away_and_a_pipe_has_none(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"{SESSION}\n{TRAIN}\ndistributor.run(train, False)\nspark.stop()\n")
    ours, theirs = pty.openpty()
    drawn = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            while piece := os.read(ours, 4096):
                drawn.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        python = [sys.executable, str(program)]
        output = subprocess.run(python, stdout=subprocess.PIPE, stderr=theirs, timeout=150, check=True).stdout
    finally:
        os.close(theirs)
        reader.join(60)
        os.close(ours)
    assert b"\rtrain: " in drawn
    assert b" \r" in drawn.rpartition(b"\rtrain: ")[2], "DISPLAY-8: in the end it is taken away"
    assert output.count(b"[rank 0] <script>") == 1
    assert b"train: " not in output, "DISPLAY-7"


@pytest.mark.timeout(120)
def test_in_a_browser_nothing_that_came_from_ranks_runs(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium")
    evil = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    shown = snapshot(2, name=evil, lines=[evil])
    shown["ranks"][0] |= {"host": evil, "values": {evil: evil}}
    shown["failure"] = dict.fromkeys(("kind", "cause", "host", "text", "traceback", "stacks"), evil) | {
        "rank": 0
    }
    page = _native.run_page(json.dumps(shown))
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><title>mine</title>{page}", encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    program = [chromium, *options, "--dump-dom", "--virtual-time-budget=2000", file.as_uri()]
    dom = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True).stdout
    assert "<title>mine</title>" in dom, "PAGE-1"
    assert dom.count("document.title = 'owned'") >= 8, "PAGE-1: it is there as text"
