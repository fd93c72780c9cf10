"""How torch comes to know the backend, and maps of backends by device."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx.request.payload import function_payload
from support.backend_ranks import Rank, Ranks
from support.one_rank import RankRun
from support.places import PYTHON

pytestmark = pytest.mark.timeout(120)


def run(text: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


USE = """
import torch.distributed as dist
dist.init_process_group("phalanx", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(2)
dist.all_reduce(tensor)
print(dist.get_backend(), tensor.tolist())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("first", ["import phalanx\nimport torch\n", "import torch\nimport phalanx\n"])
def test_the_backend_is_there_whichever_is_imported_first(first: str) -> None:
    assert run(first + USE) == "phalanx [1.0, 1.0]"


def test_an_import_of_phalanx_imports_neither_torch_nor_the_native_module() -> None:
    # BACKEND-11
    heavy = ("torch", "phalanx._native", "phalanx.process_group.group")
    assert run(f"import sys, phalanx; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_an_installed_package_needs_no_import(tmp_path: Path) -> None:
    """As pip installs it: with metadata that has torch's entry point."""
    info = tmp_path / "phalanx-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: phalanx\nVersion: 1.2.3\n")
    project = (PYTHON / "pyproject.toml").read_text()
    assert (
        '[project.entry-points."torch.backends"]\nphalanx = "phalanx.process_group.registration:install"'
        in project
    )
    (info / "entry_points.txt").write_text(
        "[torch.backends]\nphalanx = phalanx.process_group.registration:install\n"
    )
    path = os.pathsep.join([str(PYTHON), str(tmp_path)])
    assert run("import torch\n" + USE, PYTHONPATH=path) == "phalanx [1.0, 1.0]"


def test_a_rank_finds_the_backend_where_the_package_is_not_installed(
    run_rank: Callable[..., RankRun],
) -> None:
    # BACKEND-12: from the jar the package is unpacked into a folder, without metadata
    def train() -> Any:
        import torch
        import torch.distributed as dist

        dist.init_process_group("phalanx", store=dist.HashStore(), rank=0, world_size=1)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        return tensor.tolist(), dist.get_backend()

    done = run_rank(function_payload(train, (), {}, sys_path=[]), PYTHONPATH=str(PYTHON))
    assert done.code == 0, done.err
    assert done.result == ([1.0, 1.0], "phalanx")


def test_a_torch_that_is_not_as_we_know_it_works_without_the_backend(tmp_path: Path) -> None:
    # BACKEND-13
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (package / "__init__.py").write_text("from .distributed_c10d import Backend\n")
    (package / "distributed_c10d.py").write_text("class Backend: pass\n")
    text = """
    import warnings, phalanx
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch.distributed
    print(torch.distributed.Backend.__name__, len(caught), "could not be registered" in str(caught[0].message))
    """
    assert run(text, PYTHONPATH=os.pathsep.join([str(tmp_path), str(PYTHON)])) == "Backend 1 True"


def by_device(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    tensor = torch.full((3,), float(rank.rank))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0] * 3
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, rank.rank)
    assert objects == [0, 1]
    group: Any = dist.group.WORLD
    assert group._get_backend(device).getBackendName() == "phalanx"
    names = {device.type for device in group._device_types}
    assert names == ({"cpu", "cuda"} if rank.backend != "cpu:phalanx" else {"cpu"})
    part = dist.new_group([0, 1])
    dist.all_reduce(tensor, group=part)
    assert tensor.tolist() == [2.0] * 3
    dist.barrier()


@pytest.mark.parametrize(
    "backend", ["phalanx", "cpu:phalanx", "cpu:phalanx,cuda:nccl", "cpu:phalanx,cuda:gloo"]
)
def test_each_device_has_its_backend(ranks: Ranks, backend: str) -> None:
    ranks.run(by_device, backend=backend)


def companion(rank: Rank) -> None:
    """A device's other backend is made when it is asked for, over the same store, as torch makes it."""
    import torch
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    other = group._get_backend(torch.device("cuda"))
    assert isinstance(other, dist.ProcessGroupGloo)
    tensor = torch.full((3,), float(rank.rank))
    other.allreduce([tensor]).wait()
    assert tensor.tolist() == [1.0] * 3
    assert group._get_backend(torch.device("cuda")) is other


def test_a_map_has_the_backends_of_other_devices(ranks: Ranks) -> None:
    # BACKEND-1
    ranks.run(companion, backend="cpu:phalanx,cuda:gloo")
