"""What the training code has not closed when it ends is written all the same, as at the end of a Python program."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor, _native
from support.one_rank import RankRun, script, sent

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(120)

# Writes what a program may leave open, each in its own way, into the folder that it is given.
LEAVES_OPEN = """
import ctypes, gc, os, sys, zipfile
gc.disable()  # of a file in a cycle it closes the descriptor first
FOLDER = sys.argv[1]
def new(name): return open(os.path.join(FOLDER, name), "w")

top_level = new("top-level")
top_level.write("kept")

class Closes:
    def __del__(self, open=open, path=os.path.join(FOLDER, "finalizer")):
        with open(path, "w") as file:
            file.write("kept")
closes = Closes()

archive = zipfile.ZipFile(os.path.join(FOLDER, "archive"), "w")
archive.writestr("member", "kept")

sys.path.insert(0, FOLDER)
with open(os.path.join(FOLDER, "of_a_module.py"), "w") as file:
    file.write("import sys; log = open(sys.argv[1] + '/module', 'w'); log.write('kept')")
import of_a_module

import signal
def handler(*_): held.flush()
held = new("held-by-the-system")
held.write("kept")
signal.signal(signal.SIGUSR1, handler)

sys.stdout.write("no end of line")
sys.stdout = new("stdout")
print("kept", end="")

libc = ctypes.CDLL(None)
libc.fopen.restype = libc.strdup.restype = ctypes.c_void_p
stream = libc.fopen(os.path.join(FOLDER, "c-stream").encode(), b"w")
libc.fputs(b"kept", ctypes.c_void_p(stream))
if len(sys.argv) > 2:
    import torch
# Called with the exit code and its argument: a formatted print to descriptor 0.
os.dup2(os.open(os.path.join(FOLDER, "c-handler"), os.O_WRONLY | os.O_CREAT), 0)
libc.on_exit(libc.dprintf, ctypes.c_void_p(libc.strdup(b"kept")))

class Cycle:
    def __init__(self):
        self.me, self.log = self, new("cycle")
        self.log.write("kept")
Cycle()
"""
NAMES = ("top-level", "cycle", "finalizer", "module", "held-by-the-system", "stdout", "c-stream", "c-handler")


def check(folder: Path) -> None:
    import zipfile

    assert {name: (folder / name).read_text() for name in NAMES} == dict.fromkeys(NAMES, "kept"), "END-1"
    assert zipfile.ZipFile(folder / "archive").read("member") == b"kept"


@pytest.mark.parametrize("more", [(), ("torch",)])
def test_a_file_leaves_nothing_unwritten(run_rank: RunRank, tmp_path: Path, more: tuple[str, ...]) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    end = run_rank(script(tmp_path, LEAVES_OPEN, str(kept), *more))
    assert (end.code, end.out) == (0, "no end of line"), end.err
    assert end.err == ""
    check(kept)


def test_a_module_leaves_nothing_unwritten(run_rank: RunRank, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "leaves_open.py").write_text(LEAVES_OPEN)
    header = f'{{"kind": "module", "name": "leaves_open", "args": ["{tmp_path}"], '
    header += f'"sys_path": ["{tmp_path / "project"}"], "results": "json"}}'
    end = run_rank(b"phalanx payload 1\n" + header.encode() + b"\n")
    assert (end.code, end.err) == (0, "")
    check(tmp_path)


def test_a_function_leaves_nothing_unwritten(run_rank: RunRank, tmp_path: Path) -> None:
    def train(text: str, folder: str) -> None:
        import sys

        sys.argv = ["", folder]
        exec(text, {"__name__": "of a function"})

    end = run_rank(sent(train, LEAVES_OPEN, str(tmp_path)))
    assert (end.code, end.out) == (0, "no end of line"), end.err
    check(tmp_path)


def test_a_failed_rank_leaves_nothing_unwritten(run_rank: RunRank, tmp_path: Path) -> None:
    # The exit code that C's handler is given is a descriptor here: that of the standard output.
    text = LEAVES_OPEN.replace('"c-handler"), os.O_WRONLY | os.O_CREAT), 0', '"c-handler"), 65), 1')
    text = text.replace("os.dup2(", "sys.__stdout__.flush()\nos.dup2(")
    end = run_rank(script(tmp_path, text + "raise ValueError('at the end')", str(tmp_path)))
    assert (end.code, end.error["message"]) == (1, "at the end")
    check(tmp_path)


def test_warm_ranks_leave_nothing_unwritten(spark: Any, tmp_path: Path) -> None:
    def train(text: str, folder: str) -> None:
        import os
        import sys

        own = os.path.join(folder, os.environ["RANK"])
        os.mkdir(own)
        sys.argv = ["", own]
        exec(text, {"__name__": "of a function"})

    _native.end_pools()
    try:
        before = _native.pool_usage()[2]
        distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False, warm=True)
        distributor.run(train, LEAVES_OPEN, str(tmp_path))
        assert _native.pool_usage()[2] > before
    finally:
        _native.end_pools()
    for rank in ("0", "1"):
        check(tmp_path / rank)


def test_what_still_runs_keeps_its_names_to_the_end(run_rank: RunRank, tmp_path: Path) -> None:
    end = run_rank(
        script(
            tmp_path,
            """
            import sys, threading, time
            log = open(sys.argv[1], "w")
            log.write("kept")
            class Slow:
                def __del__(self):
                    time.sleep(0.2)
            slow = Slow()
            def go_on():
                while True:
                    log.closed, time.sleep(0.001)
            threading.Thread(target=go_on, daemon=True).start()
            """,
            tmp_path / "log",
        )
    )
    assert (end.code, end.err, (tmp_path / "log").read_text()) == (0, "", "kept")


def test_a_rank_that_can_not_end_says_so_and_ends(run_rank: RunRank, tmp_path: Path) -> None:
    end = run_rank(
        script(
            tmp_path,
            """
            import phalanx, phalanx.rank.ending, threading
            phalanx.rank.ending.LAST_SECONDS = 0.3
            class Stuck:
                def __del__(self): threading.Event().wait()
            stuck = Stuck()
            phalanx.set_result(7)
            """,
        )
    )
    assert (end.code, end.result) == (0, 7), "END-3"
    assert "not all written 0 s after its exit handlers" in end.err
    assert "in __del__" in end.err


def test_a_group_of_gloos_that_nobody_destroyed_is_no_hindrance(run_rank: RunRank, tmp_path: Path) -> None:
    def train(store: str) -> int:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        return 7

    end = run_rank(sent(train, str(tmp_path / "store")), GLOO_SOCKET_IFNAME="lo", timeout=100)
    assert (end.code, end.result, end.err) == (0, 7, ""), "END-2"


@pytest.mark.parametrize("end_of_child", ["sys.exit(0)", "sys.exit(3)", "1 / 0", "pass"])
def test_a_forked_child_is_no_rank(run_rank: RunRank, tmp_path: Path, end_of_child: str) -> None:
    end = run_rank(
        script(
            tmp_path,
            f"""
            import os, phalanx, sys
            phalanx.set_result("the parent's")
            child = os.fork()
            if child == 0:
                phalanx.set_result("the child's")
                log = open(sys.argv[1], "w")
                log.write("kept")
                {end_of_child}
            else:
                phalanx.set_result(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                assert not os.path.exists(os.path.join(os.environ["PHALANX_RANK_DIR"], "result"))
            """,
            tmp_path / "log",
        )
    )
    assert end.code == 0, end.err
    assert end.result == {"sys.exit(3)": 3, "1 / 0": 1}.get(end_of_child, 0), "RANK-5"
    assert "error.json" not in end.left
    assert "raised" not in end.notes
    assert ("ZeroDivisionError" in end.err) == (end_of_child == "1 / 0")
    assert (tmp_path / "log").read_text() == "kept"


def test_a_childs_end_does_not_pass_for_its_parents(run_rank: RunRank) -> None:
    def train() -> str:
        if os.fork() == 0:
            return "the child's"
        os.wait()
        os._exit(0)

    end = run_rank(sent(train))
    assert (end.code, end.left) == (0, {"owed"}), "RANK-5: code 0 with a debt is a failure"
