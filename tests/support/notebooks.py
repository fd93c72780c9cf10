"""Notebooks of the repository, executed as they stand in a kernel of the Python that runs the tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient

from support.places import ROOT


class _ThisPython:
    """A kernel of the Python that runs the tests; no kernel has to be installed anywhere."""

    @property
    def kernel_spec(self) -> Any:
        spec = super().kernel_spec  # type: ignore[misc]
        if spec is not None:
            spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return spec


class Kernel(_ThisPython, KernelManager):
    """One to send cells to by hand."""


class _AsyncKernel(_ThisPython, AsyncKernelManager):
    """One for a client that executes whole notebooks."""


def executed(name: str, folder: Path) -> Any:
    """The notebook of this name with its outputs; it ran in `folder`."""
    return run(stored(name), folder)


def run(notebook: Any, folder: Path) -> Any:
    """The notebook with its outputs; it ran in `folder`."""
    client = NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        kernel_manager_class=_AsyncKernel,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return notebook


def stored(name: str) -> Any:
    """The notebook of this name."""
    return nbformat.read(ROOT / "notebooks" / name, as_version=4)


def printed(notebook: Any, source: str) -> str:
    """What the one code cell whose text contains `source` printed, and its value."""
    [cell] = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    texts = []
    for output in cell.outputs:
        texts.append(output["text"] if output.output_type == "stream" else output["data"]["text/plain"])
    return "".join(texts)
