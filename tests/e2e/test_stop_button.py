"""A notebook's stop button while ranks write as fast as they can."""

from __future__ import annotations

import queue
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import notebooks
from support.programs import classic_conf, eventually, gone

pytestmark = pytest.mark.timeout(150)

SESSION = """
    from phalanx import TorchDistributor
    from pyspark.sql import SparkSession

    SparkSession.builder.config(map={conf}).getOrCreate()

    def chatter(folder):
        import os
        from pathlib import Path

        (Path(folder) / ("new-" + os.environ["RANK"])).write_text(str(os.getpid()))
        (Path(folder) / ("new-" + os.environ["RANK"])).rename(Path(folder) / os.environ["RANK"])
        while True:
            print("." * 100)
"""
RUN = """
    distributor = TorchDistributor(num_processes=2, local_mode={local}, use_gpu=False)
    distributor.run(chatter, {folder!r})
"""
AFTERWARDS = """
    run = distributor.last_run
    print(run.done, run.status, [rank.state for rank in run.ranks], distributor.run(lambda: "works"))
"""


class Notebook:
    """A kernel, and what its newest cell has printed."""

    def __init__(self, folder: Path) -> None:
        self.manager = notebooks.Kernel()
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.printed = ""

    def begin(self, cell: str) -> str:
        self.printed = ""
        return str(self.client.execute(textwrap.dedent(cell)))

    def read(self) -> None:
        """Takes what was printed, as a browser does."""
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            try:
                message = self.client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                return
            if message["msg_type"] == "stream":
                self.printed = self.printed[-10_000:] + message["content"]["text"]

    def reply(self, to: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def came() -> bool:
            self.read()
            try:
                message = self.client.get_shell_msg(timeout=0.01)
            except queue.Empty:
                return False
            if message["parent_header"].get("msg_id") == to:
                found.append(message["content"])
            return bool(found)

        eventually("the cell ends", 60, came)
        return found[0]

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    made = Notebook(tmp_path_factory.mktemp("notebook"))
    conf = classic_conf("local[2]")
    reply = made.reply(made.begin(SESSION.format(conf=conf)))
    assert reply["status"] == "ok", reply
    yield made
    made.end()


@pytest.mark.parametrize("over", ["jvm", "local"])
def test_the_stop_button_ends_a_run_that_floods_the_cell(
    over: str, notebook: Notebook, tmp_path: Path
) -> None:
    cell = notebook.begin(RUN.format(local=over == "local", folder=str(tmp_path)))

    def floods() -> bool:
        notebook.read()
        return all(
            (tmp_path / str(rank)).exists() and f"[rank {rank}] ...." in notebook.printed for rank in (0, 1)
        )

    eventually("the cell shows the output of both ranks", 60, floods)
    ranks = [int((tmp_path / str(rank)).read_text()) for rank in (0, 1)]
    notebook.manager.interrupt_kernel()
    reply = notebook.reply(cell)
    assert reply.get("ename") == "KeyboardInterrupt", f"RUN-4: {reply}"
    assert gone(ranks), "RUN-4: they are gone before the cell ends"
    assert notebook.reply(notebook.begin(AFTERWARDS))["status"] == "ok", "the notebook goes on"
    eventually("the cell's output", 20, lambda: notebook.read() or "works" in notebook.printed)
    assert notebook.printed.splitlines()[-1] == "True over ['stopped', 'stopped'] works"
