"""The quickstart notebook runs as it stands, in a kernel of this environment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "01-quickstart.ipynb"
LEAST_ACCURACY = 0.95


class ThisPython(AsyncKernelManager):
    """A kernel of the Python that runs the tests; no kernel has to be installed anywhere."""

    @property
    def kernel_spec(self) -> Any:
        spec = super().kernel_spec
        if spec is not None:
            spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return spec


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path_factory.mktemp("notebook")
    client = NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        kernel_manager_class=ThisPython,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return notebook


def printed(notebook: Any, source: str) -> str:
    """What the one code cell whose text contains `source` printed, and its value."""
    [cell] = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    texts = []
    for output in cell.outputs:
        texts.append(output["text"] if output.output_type == "stream" else output["data"]["text/plain"])
    return "".join(texts)


@pytest.mark.timeout(600)
def test_output_of_every_rank_is_in_the_cell_that_ran_the_training(executed: Any) -> None:
    lines = printed(executed, "distributor.run(train").splitlines()
    for rank in (0, 1):
        epochs = [line for line in lines if line.startswith(f"[rank {rank}] epoch")]
        assert len(epochs) == 10, lines


def test_the_weights_that_came_back_know_the_digits(executed: Any) -> None:
    text = printed(executed, "test accuracy")
    assert float(text.split("test accuracy:")[1]) >= LEAST_ACCURACY, text


def test_every_ranks_result_is_there(executed: Any) -> None:
    text = printed(executed, "run.results()")
    assert "{'rank': 0, 'images': 899}" in text, text
    assert "{'rank': 1, 'images': 898}" in text, text


def test_the_failing_ranks_own_error_is_shown(executed: Any) -> None:
    text = printed(executed, "except TrainingError")
    assert "raised KeyError: 'labels'" in text, text
    assert 'raise KeyError("labels")' in text, "the traceback shows the cell's source: " + text
    assert "kind: exception, rank: 1, cause: KeyError('labels')" in text, text


def test_the_notebook_is_stored_without_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            assert not cell.outputs, cell.source
            assert cell.execution_count is None, cell.source
