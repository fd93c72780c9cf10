"""Warm pools: a rank that was forked is to its user one that was started; what a pool may not be forked with."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from phalanx import TorchDistributor, _native
from phalanx.warm_pool import openblas
from phalanx.warm_pool.module_check import Imported
from support.places import PYTHON
from support.tiers import whole

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def no_pool_before_and_after(spark: Any) -> Iterator[None]:
    _native.end_pools()
    yield
    for key in ("imports", "idleTimeout", "enabled"):
        spark.conf.unset(f"spark.phalanx.warm.{key}")
    _native.end_pools()
    until = time.monotonic() + 10
    while guards_of_pools() and time.monotonic() < until:
        time.sleep(0.02)
    assert not guards_of_pools(), "a pool ends with its registry"


def guards_of_pools() -> list[psutil.Process]:
    """Those of this process, and what is below them. A Python worker of the session's may have a pool, too."""
    guards = [p for p in psutil.Process().children() if p.name() == "phalanx-guard"]
    return guards + [p for guard in guards for p in guard.children(recursive=True)]


def forks() -> int:
    return _native.pool_usage()[2]


def run(train: Callable[..., Any], *args: Any, warm: bool | None = True, ranks: int = 2) -> list[Any]:
    """What every rank returned; fails if they were not as warm as they were asked to be."""
    before = forks()
    distributor = TorchDistributor(num_processes=ranks, local_mode=True, use_gpu=False, warm=warm)
    distributor.run(train, *args)
    if warm is not None:
        assert (forks() > before) == warm
    assert distributor.last_run is not None
    return distributor.last_run.results()


def facts() -> dict[str, Any]:
    """What a process can know of itself, as far as it is the same in every run."""
    import contextlib
    import ctypes
    import os
    import signal
    import sys
    import threading

    import numpy
    import torch

    of_a_run = ("PHALANX_", "MLFLOW_", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
    of_a_run += ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    descriptors = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that reads the folder
            descriptors[int(fd)] = os.readlink(f"/proc/self/fd/{fd}").partition(":")[0].rpartition("/")[2]
    status_lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in status_lines if ":\t" in line)
    mapped = Path("/proc/self/maps").read_text().splitlines()
    maps = {line.split()[-1] for line in mapped if "openblas" in line.rpartition("/")[2]}
    blas = [
        int(getattr(library, name)())
        for library in map(ctypes.CDLL, maps)
        for name in ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads")
        if hasattr(library, name)
    ]
    stream = {
        name: [
            getattr(getattr(sys, name), what)
            for what in ("encoding", "errors", "line_buffering", "write_through", "name", "mode", "closed")
        ]
        + [getattr(sys, name).seekable(), getattr(sys, name).isatty()]
        for name in ("stdin", "stdout", "stderr")
    }
    main = sys.modules["__main__"]
    return {
        "session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "descriptors": descriptors,
        "handlers": {
            int(n): getattr(signal.getsignal(n), "__qualname__", str(signal.getsignal(n)))
            for n in signal.valid_signals()
        },
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "wakeup": signal.set_wakeup_fd(-1),
        "environment": {k: v for k, v in os.environ.items() if not k.startswith(of_a_run)},
        "c environment": [
            str(ctypes.CDLL(None).getenv(b"RANK") != 0),
            str(ctypes.CDLL(None).getenv(b"PHALANX_POOL")),
        ],
        "cwd": os.getcwd(),
        "argv": [sys.argv, sys.orig_argv, sys.executable],
        "path": sys.path,
        "main": [sorted(vars(main)), main.__name__],
        "torch": [torch.get_num_threads(), torch.get_num_interop_threads(), torch.is_grad_enabled()],
        "blas": blas,
        "matrix": float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()),
        "backward": float(torch.ones(512, 512, requires_grad=True).pow(2).sum().backward() or 1),
        "streams": stream,
        "name": Path("/proc/self/comm").read_text(),
        "inherited": [status[name] for name in ("Umask", "Cpus_allowed", "NoNewPrivs")],
        "threads": threading.active_count(),
        "thread": threading.current_thread() is threading.main_thread(),
        "cuda": [torch.cuda.is_initialized(), torch.cuda.device_count()],
        "parent": Path(f"/proc/{os.getppid()}/comm").read_text(),
    }


def test_a_forked_rank_is_as_one_that_was_started(spark: Any) -> None:
    for ranks in (1, 2):
        warm, cold = run(facts, ranks=ranks), run(facts, warm=False, ranks=ranks)
        for one, other in zip(warm, cold, strict=True):
            for name in other:
                assert one[name] == other[name], f"POOL-1: {name}"


def drawn() -> list[Any]:
    import multiprocessing
    import random
    import uuid

    import numpy
    import torch

    return [
        random.random(),
        numpy.random.rand(),
        float(numpy.random.default_rng().random()),
        str(uuid.uuid4()),
        multiprocessing.current_process().authkey.hex(),
        torch.initial_seed(),
        torch.rand(1).item(),
    ]


def test_ranks_draw_numbers_of_their_own(spark: Any) -> None:
    all_ranks = run(drawn) + run(drawn)
    for values in zip(*all_ranks, strict=True):
        assert len(set(values)) == 4, values


def test_a_second_run_takes_the_pool_of_the_first_and_sees_the_caller_as_it_is_now(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> Any:
        import os

        return os.getcwd(), os.environ.get("NEWLY_SET"), os.environ.get("HOST"), os.umask(0o22)

    monkeypatch.setenv("HOST", "first")
    run(look)
    monkeypatch.setenv("NEWLY_SET", "ä b")
    monkeypatch.delenv("HOST")
    monkeypatch.chdir(tmp_path)
    assert run(look)[0] == (str(tmp_path), "ä b", None, 0o22)
    assert _native.pool_usage()[0] == 1


def test_another_fingerprint_is_another_pool_and_the_third_takes_the_place_of_the_oldest(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads() -> Any:
        import os

        import torch

        return (
            min(int(os.environ["OMP_NUM_THREADS"]), len(os.sched_getaffinity(0))) == torch.get_num_threads()
        )

    for number, pools in (("1", 1), ("2", 2), ("3", 2)):
        monkeypatch.setenv("OMP_NUM_THREADS", number)
        assert run(threads) == [True, True], "POOL-12"
        assert _native.pool_usage()[0] == pools, "POOL-14"


def huge_pages_kib(pool: int | None = None) -> int:
    """What a pool has in huge pages: this rank's."""
    pool = pool or psutil.Process(os.getppid()).ppid()
    rollup = Path(f"/proc/{pool}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("AnonHugePages"))


def test_what_has_time_is_imported_beside_the_first_ranks_and_out_of_sight(spark: Any) -> None:
    def has_it(seconds: float) -> tuple[bool, bool, bool, str]:
        import sys

        import torch
        from phalanx.warm_pool.late_import import loaded

        time.sleep(seconds)
        seen = "sympy" in sys.modules, loaded("sympy") is not None
        # What training code sets after its `import torch` still has an effect.
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
        import sympy

        return *seen, bool(torch._dynamo.config.disable), str(sympy.Symbol("x") * 2)

    assert run(has_it, 4.0) == [(False, False, True, "2*x")] * 2, "POOL-16: no rank waits for it"
    end = time.monotonic() + 60
    while run(has_it, 0.0) != [(False, True, True, "2*x")] * 2:
        assert time.monotonic() < end, "POOL-4, POOL-16"
        time.sleep(3)


@whole("what a pool takes, and not what it does")
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages"
)
def test_a_pool_moves_to_huge_pages_after_three_jobs_once_it_has_nothing_else_to_do(spark: Any) -> None:
    # POOL-8
    def train(seconds: float) -> int:
        time.sleep(seconds)
        return huge_pages_kib()

    assert run(train, 0.0) == [0, 0]
    time.sleep(1.5)
    for seconds in (0.0, 1.5):
        assert run(train, seconds) == [0, 0], "neither for few jobs nor beside ranks"
    (pool,) = (process.pid for process in guards_of_pools() if process.name() == "phalanx-pool")
    until = time.monotonic() + 60
    while huge_pages_kib(pool) < 100 << 10:  # torch alone takes some 280 MiB
        assert time.monotonic() < until
        time.sleep(0.1)


def test_what_a_pool_takes_can_be_told(spark: Any) -> None:
    run(facts)
    pools, resident, forked = _native.pool_usage()
    assert (pools, forked > 0) == (1, True)
    assert resident > 50 << 20


def module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that ranks have on their path."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{PYTHON}")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "a thread",
        ),
        pytest.param(
            "import torch; torch.cuda._initialized = True", "initialized CUDA", marks=whole("another cause")
        ),
        pytest.param("import os; os._exit(7)", "it ended while it imported", marks=whole("another cause")),
    ],
)
def test_a_pool_that_can_not_be_forked_from_is_no_hindrance_and_says_why(
    text: str, why: str, spark: Any, modules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module(modules, "unfit", text)
    spark.conf.set("spark.phalanx.warm.imports", "unfit")
    with caplog.at_level(logging.INFO, "phalanx"):
        assert run(lambda: 5, warm=None) == [5, 5]
        lines = [record.message for record in caplog.records if "without the warm pool" in record.message]
        assert len(lines) == 1, ("NODE-50", lines)
        assert why in lines[0], "POOL-3"
        assert _native.pool_usage() == (0, 0, forks())
        assert run(lambda: 6, warm=None) == [6, 6], "and is not tried again at once"


@whole("another library")
def test_arrow_and_what_imports_it_can_be_in_a_pool(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    def table() -> tuple[bool, bool]:
        import os
        import sys

        imported = "phalanx.warm_pool.server" in sys.modules
        import pyarrow

        return imported and pyarrow.table({"x": [1]}).num_rows == 1, "JE_ARROW_MALLOC_CONF" in os.environ

    spark.conf.set("spark.phalanx.warm.imports", "pyarrow.parquet")
    with caplog.at_level(logging.WARNING, "phalanx"):
        assert run(table) == [(True, False)] * 2, "POOL-3, POOL-1"
    assert "without the warm pool" not in caplog.text


def test_a_rank_that_starts_anew_says_why_once_a_node(
    spark: Any, modules: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(modules, "reader", "import os; cache = os.environ.get('READER_CACHE')")
    spark.conf.set("spark.phalanx.warm.imports", "reader")
    assert run(lambda: __import__("reader").cache) == [None, None]
    monkeypatch.setenv("READER_CACHE", "/models")
    with caplog.at_level(logging.INFO, "phalanx"):
        assert run(lambda: __import__("reader").cache, warm=None) == ["/models"] * 2, "POOL-2"
    [line] = [record.message for record in caplog.records if "without the warm pool" in record.message]
    assert "its READER_CACHE differs from the one that reader has read in the pool" in line, "NODE-50"


@whole("another library")
def test_a_pool_with_libraries_is_one_for_the_callers_mlflow_server(spark: Any, modules: Path) -> None:
    def server() -> tuple[bool, str | None]:
        import sys

        is_warm = "phalanx.warm_pool.server" in sys.modules
        return is_warm, __import__("logs_there").server

    module(modules, "logs_there", "import os; server = os.environ.get('MLFLOW_TRACKING_URI')")
    spark.conf.set("spark.phalanx.warm.imports", "logs_there")
    for given in ("http://one", "http://other", "http://one"):
        env = {"MLFLOW_TRACKING_URI": given}
        distributor = TorchDistributor(2, local_mode=True, use_gpu=False, env=env)
        assert distributor.run(server) == (True, given), "POOL-2"


def test_what_is_missing_is_skipped_and_told(
    spark: Any, modules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module(modules, "broken", "raise ValueError('not today')")
    module(modules, "whole", "import os; imported_by = os.getpid()")
    spark.conf.set("spark.phalanx.warm.imports", "nowhere, broken, whole")
    with caplog.at_level(logging.INFO, "phalanx"):
        assert run(lambda: __import__("whole").imported_by != os.getpid()) == [True, True]
    said = " ".join(record.message for record in caplog.records)
    assert "nowhere, which is not installed" in said
    assert "ValueError: not today" in said


def test_a_pool_whose_modules_were_edited_is_discarded(
    spark: Any, modules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def version() -> Any:
        import edited

        return edited.version

    module(modules, "edited", "version = 1")
    spark.conf.set("spark.phalanx.warm.imports", "edited")
    assert run(version) == [1, 1]
    module(modules, "edited", "version = 'second'")
    with caplog.at_level(logging.WARNING, "phalanx"):
        assert run(version, warm=None) == ["second", "second"], "POOL-7"
    assert "edited.py has changed" in caplog.text


def test_a_rank_whose_path_leads_to_another_module_starts_anew(
    spark: Any, modules: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version() -> Any:
        import shadowed

        return shadowed.version

    module(modules, "shadowed", "version = 'installed'")
    spark.conf.set("spark.phalanx.warm.imports", "shadowed")
    assert run(version) == ["installed"] * 2
    callers = tmp_path_factory.mktemp("callers")
    module(callers, "shadowed", "version = 'the caller has another'")
    monkeypatch.syspath_prepend(str(callers))
    sys.path.remove(str(callers))
    sys.path.insert(0, str(callers))
    # before what the ranks have, too
    sys.path.insert(1, str(modules))
    try:
        assert run(version) == ["the caller has another"] * 2, "POOL-2"
    finally:
        sys.path.remove(str(modules))


@pytest.mark.parametrize("kind", ["a link", "a zip file"])
def test_what_a_training_file_brings_on_its_path_shadows_what_the_pool_has(
    spark: Any, modules: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    text = "import phalanx, shadowed\nphalanx.set_result(shadowed.version)"
    module(modules, "shadowed", "version = 'installed'")
    spark.conf.set("spark.phalanx.warm.imports", "shadowed")
    real, folder = tmp_path_factory.mktemp("real"), tmp_path_factory.mktemp("folder")
    file = folder / "train"
    if kind == "a link":
        module(real, "shadowed", "version = 'beside the file'")
        (real / "train.py").write_text(text)
        file.symlink_to(real / "train.py")
    else:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("__main__.py", text)
            archive.writestr("shadowed.py", "version = 'beside the file'")
    distributor = TorchDistributor(num_processes=1, local_mode=True, use_gpu=False, warm=True)
    assert distributor.run(str(file)) == "beside the file", "POOL-6"


def test_a_pool_without_a_job_ends_by_itself_and_the_next_run_has_another(spark: Any) -> None:
    spark.conf.set("spark.phalanx.warm.idleTimeout", "200ms")
    run(lambda: None)
    until = time.monotonic() + 20
    while _native.pool_usage()[0] and time.monotonic() < until:
        time.sleep(0.02)
    assert _native.pool_usage()[0] == 0, "POOL-14"
    run(lambda: None)


@whole("a setting in place of the argument")
def test_a_setting_and_an_argument_turn_it_off(spark: Any) -> None:
    spark.conf.set("spark.phalanx.warm.enabled", "false")
    before = forks()
    run(lambda: None, warm=None)
    assert forks() == before
    run(lambda: None, warm=True)
    spark.conf.unset("spark.phalanx.warm.enabled")
    run(lambda: None, warm=False)


def test_ranks_live_on_when_their_pool_is_killed(spark: Any, tmp_path: Path) -> None:
    def train(folder: str) -> str:
        import os
        import time

        open(os.path.join(folder, os.environ["RANK"]), "w").close()
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.02)
        return "done"

    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    going = distributor.start(train, str(tmp_path))
    until = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    pools = [p for p in guards_of_pools() if p.name() == "phalanx-pool"]
    assert len(pools) == 1
    pools[0].kill()
    (tmp_path / "go").touch()
    assert going.result(60) == "done", "POOL-11"
    run(lambda: None)


def test_the_threads_of_openblas_are_read_as_it_reads_them() -> None:
    cores = len(os.sched_getaffinity(0))
    for env, threads in [
        ({}, cores),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "3"}, 2),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"GOTO_NUM_THREADS": "none", "OMP_NUM_THREADS": "0"}, cores),
    ]:
        assert openblas.threads(env) == threads, env


def test_shadows_are_modules_that_come_first_and_no_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, before, after = (tmp_path / name for name in ("own", "before", "after"))
    for folder in (own, before, after):
        folder.mkdir()
    module(own, "one_of_ours", "")
    monkeypatch.syspath_prepend(str(own))
    known = set(sys.modules)
    import one_of_ours  # type: ignore[import-not-found]  # noqa: F401

    imported = Imported(known)
    (before / "one_of_ours").mkdir()
    module(after, "one_of_ours", "")
    assert imported.shadowed([str(before), *sys.path, str(after)]) is None, (
        "a namespace, and one that comes later"
    )
    module(before / "one_of_ours", "__init__", "")
    said = imported.shadowed([str(before), *sys.path])
    assert said is not None, "POOL-6"
    assert str(before) in said
    assert imported.changed() is None
    module(own, "one_of_ours", "changed = 1")
    assert imported.changed() == str(own / "one_of_ours.py"), "POOL-7"
    sys.modules.pop("one_of_ours")
    assert json.dumps(said)
