"""What training code sets before its `import torch`, in a rank whose pool has imported torch already."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor, _native
from phalanx.warm_pool.late_import import Reads, hide
from support.places import PYTHON

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def no_pool_before_and_after(spark: Any) -> Iterator[None]:
    _native.end_pools()
    yield
    spark.conf.unset("spark.phalanx.warm.imports")
    _native.end_pools()


def sets_first(variables: dict[str, str]) -> Any:
    import logging
    import os
    import sys

    hidden = [name for name in sys.modules if name.partition(".")[0] in ("torch", "of_the_users")]
    os.environ.update(variables)
    import torch
    import torch.distributed

    of_the_users = __import__("of_the_users")

    return (
        hidden,
        torch.get_num_threads(),
        str(torch.distributed.get_debug_level()),
        logging.getLogger("torch._dynamo").level,
        of_the_users.seen,
        [torch.__spec__.origin == torch.__file__, sys.modules["torch"] is torch],
    )


def test_they_are_applied_or_named(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "of_the_users.py").write_text(
        "import os\nos.environ.copy()\nseen = os.environ.get('OF_THE_USERS')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{PYTHON}")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    spark.conf.set("spark.phalanx.warm.imports", "of_the_users")
    applied = {
        "OMP_NUM_THREADS": "1",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "TORCH_LOGS": "dynamo",
        "MASTER_PORT_OF_MINE": "7",
    }
    named = {"PYTORCH_JIT_TIME": "1", "OMP_PROC_BIND": "false", "OF_THE_USERS": "late"}
    ends = {}
    for warm in (True, False):
        before = _native.pool_usage()[2]
        distributor = TorchDistributor(num_processes=1, local_mode=True, use_gpu=False, warm=warm)
        ends[warm] = distributor.run(sets_first, applied), distributor.run(sets_first, applied | named)
        assert (_native.pool_usage()[2] > before) == warm
        said = [line for line in capsys.readouterr().out.splitlines() if "phalanx:" in line]
        if warm:
            assert len(said) == 2, said
            assert "phalanx: OMP_PROC_BIND, PYTORCH_JIT_TIME: this has no effect" in said[0], "POOL-5"
            assert "phalanx: OF_THE_USERS: this has no effect" in said[1], "POOL-5"
        else:
            assert not said
    assert ends[True][0] == ends[False][0] == ([], 1, "DebugLevel.DETAIL", 20, None, [True, True]), "POOL-4"
    assert ends[True][1][:4] == ends[False][1][:4]


def test_who_only_looks_for_a_hidden_module_does_not_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    package = tmp_path / "hidden_here"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text(
        "import os\n"
        "os.environ.get('READ_BY_PART'), os.getenv('READ_TOO'), os.getenvb(b'READ_AS_BYTES')\n"
        "list(os.environ.items()), os.environ.copy(), dict(os.environ), {**os.environ}, os.environ | {}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    reads = Reads()
    with reads.noted("hidden_here"):
        import hidden_here.part  # type: ignore[import-not-found]
    assert reads.of == {"hidden_here": {"READ_BY_PART", "READ_TOO", "READ_AS_BYTES"}}, (
        "who goes through all of them reads none"
    )
    module, part = hidden_here, hidden_here.part
    finders = list(sys.meta_path)
    hide(["hidden_here", "hidden_here.part", "numpy", "nowhere"], reads)
    try:
        spec = importlib.util.find_spec("hidden_here")
        assert spec is not None
        assert spec.origin == module.__file__
        assert not [name for name in sys.modules if name.startswith("hidden_here")], "POOL-4"
        from hidden_here.part import os as found

        assert found is os
        assert sys.modules["hidden_here"] is module
        assert sys.modules["hidden_here.part"] is part
        assert module.__spec__ is not spec
        assert sys.meta_path == finders
    finally:
        for name in ("hidden_here", "hidden_here.part"):
            sys.modules.pop(name, None)


def test_what_a_module_of_the_pool_read_of_another_environment_is_found() -> None:
    reads = Reads()
    reads.of = {"torch": {"TORCH_LOGS"}, "numpy": {"A"}, "hub": {"HF_HOME", "RANK", "ALIKE"}}
    before = {"ALIKE": "1", "TORCH_LOGS": "x", "A": "x", "RANK": "0"}
    assert reads.outdated(before, {"ALIKE": "1", "RANK": "1"}) is None, "POOL-2: each rank has its own"
    why = reads.outdated(before, {**before, "HF_HOME": "/models"})
    assert why == "its HF_HOME differs from the one that hub has read in the pool", "POOL-2"
