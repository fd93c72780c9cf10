"""How a rank ends, as a real process: exceptions, exits, what it leaves behind then and what it waits for."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.one_rank import RankRun, script, sent
from support.places import PYTHON

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(60)


def test_an_exception_is_written_down_with_its_pickle_and_traceback(run_rank: RunRank) -> None:
    def train() -> None:
        try:
            int("many")
        except ValueError as problem:
            raise ValueError("lr: -1") from problem

    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    end = run_rank(sent(train))
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert end.code == 1
    assert set(end.error) == {
        "type_name", "message", "traceback", "peer_lost", "blocks_lost", "before_start", "preempted", "machine",
        "at_us", "pickle",
    }  # fmt: skip
    assert (end.error["type_name"], end.error["message"]) == ("ValueError", "lr: -1")
    assert not end.error["peer_lost"]
    assert not end.error["blocks_lost"]
    assert not end.error["before_start"]
    assert not end.error["machine"]
    assert before < end.error["at_us"] < after
    assert end.left == {"error.json"}, "RANK-8"
    for text in (end.error["traceback"], end.err):
        assert 'raise ValueError("lr: -1") from problem' in text
        assert "direct cause" in text
        assert str(PYTHON / "phalanx") not in text, "RANK-9"

    import base64
    import pickle

    exc = pickle.loads(base64.b64decode(end.error["pickle"]))
    assert isinstance(exc, ValueError)
    assert "invalid literal" in str(exc.__cause__)
    assert end.notes == ["rank ready", "user code", "raised"]


def test_blocks_that_are_gone_are_told_as_such_also_where_the_code_raises_something_else(
    run_rank: RunRank,
) -> None:
    def train() -> None:
        from phalanx.feeding.blocks.source import LostBlocks

        try:
            raise LostBlocks("they went with their executor")
        except RuntimeError as problem:
            raise ValueError("no batch") from problem

    assert run_rank(sent(train)).error["blocks_lost"], "FEED-74"


def test_a_disk_that_is_full_and_a_gpu_that_has_gone_are_told_as_the_machines() -> None:
    import errno

    import torch
    from phalanx.rank.error_record import blames_machine

    def of_gpu(code: int) -> BaseException:
        error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        error.error_code = code
        return error

    full = OSError(errno.ENOSPC, "No space left on device")
    led_to = RuntimeError("the checkpoint was not written")
    led_to.__cause__ = full
    for error, is_machines in [
        (full, True),
        (led_to, True),
        (OSError(errno.EIO, "Input/output error"), True),
        (OSError(errno.ENOENT, "No such file or directory"), False),
        (of_gpu(214), True),  # an uncorrectable ECC error
        (of_gpu(700), False),  # an illegal address is mostly a kernel's own
        (ValueError("No space left on device"), False),
    ]:
        assert blames_machine(error) is is_machines, repr(error)


@pytest.mark.parametrize(
    ("what", "code"),
    [("None", 0), ("0", 0), ("3", 3), ("256", 1), ("-1", 255), ("True", 1), ("'no data'", 1)],
)
def test_sys_exit_ends_the_rank_as_it_ends_python(
    run_rank: RunRank, tmp_path: Path, what: str, code: int
) -> None:
    end = run_rank(script(tmp_path, f"import sys, phalanx\nphalanx.set_result(7)\nsys.exit({what})"))
    assert end.code == code
    assert end.err == ("no data\n" if "data" in what else "")
    assert end.left == (set() if code else {"owed", "result"}), "RANK-4, RANK-5"
    if code == 0:
        assert end.result == 7


def test_an_end_behind_pythons_back_leaves_a_debt_where_a_result_was_promised(
    run_rank: RunRank, tmp_path: Path
) -> None:
    def train() -> None:
        import os

        os._exit(0)

    leave = "import os, phalanx\n{}\nos._exit(0)"
    ends = [
        run_rank(payload)
        for payload in (
            sent(train),
            script(tmp_path, leave.format("phalanx.set_result(7)"), name="gives.py"),
            script(tmp_path, leave.format(""), name="gives_none.py"),
        )
    ]
    assert [(end.code, end.left) for end in ends] == [(0, {"owed"}), (0, {"owed"}), (0, set())], "RANK-4"


def test_a_promise_that_can_not_be_written_is_an_error_which_names_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from phalanx.rank import reporting
    from phalanx.rank.node_socket import NodeSocket

    monkeypatch.setattr(reporting, "_entered", None)
    reporting.enter(NodeSocket(-1), str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match="gone/owed"):
        reporting.owe_result()


@pytest.mark.parametrize("piece", [4096, 1])
def test_a_rank_that_has_used_up_its_memory_can_say_so(run_rank: RunRank, piece: int) -> None:
    def train(piece: int) -> None:
        import builtins
        import resource

        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + (32 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        hoard = builtins.hoard = []  # type: ignore[attr-defined]
        while True:
            hoard.append(str(len(hoard)) * piece)

    end = run_rank(sent(train, piece))
    assert (end.code, end.error["type_name"]) == (1, "MemoryError"), end.err
    assert "MemoryError" in end.err
    if piece > 1:  # else Python may have no room for where it happened
        assert "in train" in end.error["traceback"], "RANK-8"
        assert end.err.count("Error") == 1, end.err


def _under_a_limit(room: int, then: str) -> bytes:
    """A function that may map `room` bytes more than it has, and does what `then` says."""

    def train(room: int, then: str) -> None:
        import resource

        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + room
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        exec(then)

    return sent(train, room, then)


@pytest.mark.parametrize(
    ("then", "raised"),
    [
        ("import torch", "ImportError"),
        ("bytearray(1 << 32)", "MemoryError"),
        ("import mmap; mmap.mmap(-1, 1 << 32)", "OSError"),
        ("import os; raise OSError(12, os.strerror(12))", "OSError"),
        ("raise RuntimeError('std::bad_alloc')", "RuntimeError"),
        ('raise RuntimeError("can\'t start new thread")', "RuntimeError"),
        (
            "try:\n  bytearray(1 << 32)\nexcept MemoryError as e:\n  raise ValueError('two\\nlines') from e",
            "ValueError",
        ),
    ],
)
def test_a_rank_that_lacks_memory_under_a_limit_names_the_limit(
    then: str, raised: str, run_rank: RunRank
) -> None:
    end = run_rank(_under_a_limit(200 << 20, then))
    assert (end.code, end.error["type_name"]) == (1, raised), end.err
    sentence = end.error["message"].splitlines()[0]
    assert re.search(
        r"(^| )\(a rank here may map [\d.]+ (MiB|GiB) at most: RLIMIT_AS, `ulimit -v`; ", sentence
    ), f"RANK-38: {sentence}"
    assert "spark.executor.pyspark.memory" not in sentence, "whose is another limit"


def test_the_limit_of_sparks_python_workers_is_named_with_its_setting(run_rank: RunRank) -> None:
    def train() -> None:
        import os
        import resource

        limit = int(os.environ["PYSPARK_EXECUTOR_MEMORY_MB"]) << 20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        bytearray(1 << 40)

    end = run_rank(sent(train), PYSPARK_EXECUTOR_MEMORY_MB="2048")
    assert end.error["message"].startswith(
        "(a rank here may map 2.0 GiB at most: RLIMIT_AS, which spark.executor.pyspark.memory sets"
    ), "RANK-38"


@pytest.mark.parametrize("limited", [False, True])
def test_a_limit_is_named_for_want_of_memory_alone(limited: bool, run_rank: RunRank) -> None:
    then = "raise ValueError('no')" if limited else "raise MemoryError('no')"
    end = run_rank(_under_a_limit(200 << 20, then) if limited else sent(exec, then))
    assert end.error["message"] == "no", "RANK-38"


def test_an_interrupt_ends_with_130_and_no_record(run_rank: RunRank) -> None:
    def train() -> None:
        raise KeyboardInterrupt

    end = run_rank(sent(train))
    assert end.code == 130
    assert "KeyboardInterrupt" in end.err
    assert end.left == set()


@pytest.mark.parametrize(
    ("text", "told"),
    [("é" * 5000, "é" * 249 + "..."), ("/" * 1500, "/" * 1500), ('"' * 751, '"' * 748 + "..."), ("x", "x")],
)
def test_an_exception_that_no_file_takes_is_told_as_a_note(text: str, told: str, run_rank: RunRank) -> None:
    def train(text: str) -> None:
        import resource

        # As on a full disk: no file may be longer than nothing.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        raise ValueError(text)

    end = run_rank(sent(train, text))
    assert end.code == 1
    assert end.noted_error is not None, "RANK-8, RANK-10"
    assert (end.noted_error["type_name"], end.noted_error["message"]) == ("ValueError", told)
    assert end.noted_error["traceback"].endswith(f"ValueError: {text}\n"[-100:])
    assert not (end.directory / "error.json").exists()


def test_an_exception_that_does_not_come_back_is_told_without_its_pickle(run_rank: RunRank) -> None:
    def train(size: int) -> None:
        class TwoArguments(Exception):
            def __init__(self, a: int, b: int) -> None:
                super().__init__(f"{a} and {b}")

        if size:
            raise ValueError("x" * size)
        raise TwoArguments(1, 2)

    end = run_rank(sent(train, 0))
    assert (end.error["type_name"], end.error["message"], end.error["pickle"]) == (
        "TwoArguments",
        "1 and 2",
        "",
    )
    assert run_rank(sent(train, 2 << 20)).error["pickle"] == ""


def test_threads_and_exit_handlers_finish_before_the_rank_ends(run_rank: RunRank) -> None:
    def train() -> None:
        import atexit
        import threading
        import time

        def slow() -> None:
            time.sleep(0.3)
            print("thread done")

        atexit.register(lambda: 1 / 0)
        atexit.register(print, "exit handler", end="")
        threading.Thread(target=slow).start()

    end = run_rank(sent(train))
    assert (end.code, end.out) == (0, "thread done\nexit handler")
    assert "ZeroDivisionError" in end.err


def test_a_failed_rank_does_not_wait_for_a_stuck_thread(run_rank: RunRank) -> None:
    def train() -> None:
        import threading

        from phalanx.rank import ending

        patience, ending.FAILED_EXIT_SECONDS = ending.FAILED_EXIT_SECONDS, 0.5
        threading.Thread(target=threading.Event().wait, name="stuck").start()
        raise ValueError(f"it would wait for {patience} s")

    end = run_rank(sent(train))
    # docs/failures.md: 10 s, which no test has the time for.
    assert (end.code, end.error["message"]) == (1, "it would wait for 10.0 s"), "RANK-3"
    assert "still busy" in end.err


def test_a_users_excepthook_is_used(run_rank: RunRank) -> None:
    def train() -> None:

        sys.excepthook = lambda kind, exc, _: print("hooked", kind.__name__, bool(exc.__traceback__))
        raise ValueError

    assert run_rank(sent(train)).out == "hooked ValueError True\n"


@pytest.mark.timeout(200)
def test_a_peer_that_dies_is_told_from_an_own_failure(run_rank: RunRank, tmp_path: Path) -> None:
    def train(store: str) -> None:
        import os

        rank = 1 if os.fork() == 0 else 0
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        dist.all_reduce(torch.ones(1))
        if rank == 1:
            os._exit(3)
        os.wait()
        dist.all_reduce(torch.ones(1))

    end = run_rank(sent(train, str(tmp_path / "store")), timeout=150, GLOO_SOCKET_IFNAME="lo")
    assert (end.code, end.error["type_name"], end.error["peer_lost"]) == (1, "RuntimeError", True), end.err
    assert end.err.startswith("Traceback"), "the rank is named by the node, not by torch's hook as well"


def test_a_rank_with_sharded_tensors_ends_well(run_rank: RunRank, tmp_path: Path) -> None:
    def train(store: str) -> float:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        model = torch.nn.Linear(4, 4)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        for _ in range(2):  # the second step finds the cache of the first
            model(torch.ones(2, 4)).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        dist.destroy_process_group()
        return 1.0

    end = run_rank(sent(train, str(tmp_path / "store")))
    assert end.code == 0, end.err
    assert end.result == 1.0
