"""What the training code has not closed when it ends is written all the same, as at the end of a Python program."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import left_open
from support.one_rank import RankRun, script, sent

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("more", [(), ("torch",)])
def test_a_file_leaves_nothing_unwritten(run_rank: RunRank, tmp_path: Path, more: tuple[str, ...]) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    end = run_rank(script(tmp_path, left_open.PROGRAM, str(kept), *more))
    assert (end.code, end.out) == (0, "no end of line"), end.err
    assert end.err == ""
    left_open.check(kept)


def test_a_module_leaves_nothing_unwritten(run_rank: RunRank, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "leaves_open.py").write_text(left_open.PROGRAM)
    header = f'{{"kind": "module", "name": "leaves_open", "args": ["{tmp_path}"], '
    header += f'"sys_path": ["{tmp_path / "project"}"], "results": "json"}}'
    end = run_rank(b"phalanx payload 1\n" + header.encode() + b"\n")
    assert (end.code, end.err) == (0, "")
    left_open.check(tmp_path)


def test_a_function_leaves_nothing_unwritten(run_rank: RunRank, tmp_path: Path) -> None:
    def train(text: str, folder: str) -> None:
        import sys

        sys.argv = ["", folder]
        exec(text, {"__name__": "of a function"})

    end = run_rank(sent(train, left_open.PROGRAM, str(tmp_path)))
    assert (end.code, end.out) == (0, "no end of line"), end.err
    left_open.check(tmp_path)


def test_a_failed_rank_leaves_nothing_unwritten(run_rank: RunRank, tmp_path: Path) -> None:
    # The exit code that C's handler is given is a descriptor here: that of the standard output.
    text = left_open.PROGRAM.replace('"c-handler"), os.O_WRONLY | os.O_CREAT), 0', '"c-handler"), 65), 1')
    text = text.replace("os.dup2(", "sys.__stdout__.flush()\nos.dup2(")
    end = run_rank(script(tmp_path, text + "raise ValueError('at the end')", str(tmp_path)))
    assert (end.code, end.error["message"]) == (1, "at the end")
    left_open.check(tmp_path)


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
    assert (end.code, end.left, end.result) == (1, {"owed", "result"}, 7), "RANK-3"
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
    assert (end.code, end.result, end.err) == (0, 7, ""), "RANK-2"


# As six.moves makes them, and what hides others behind a name of its own.
SECOND_NAMES = """
import builtins, os, sys, types
for module in list(sys.modules.values()):
    if isinstance(module, types.ModuleType):
        sys.modules[f"second.names.{module.__name__}"] = module
sys.modules["a.class"] = type("Class", (), {"value": 1})

class Stands(types.ModuleType):
    __dict__ = property(lambda self: vars(builtins))
sys.modules["stands.for.another"] = Stands("stands.for.another")
"""


@pytest.mark.parametrize("more", ["", "import torch\n"])
def test_a_second_name_for_a_module_takes_nothing_from_it(
    run_rank: RunRank, tmp_path: Path, more: str
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    end = run_rank(
        script(tmp_path, more + SECOND_NAMES + left_open.PROGRAM + ALSO_BY_ANOTHER_NAME, str(own)),
        timeout=100,
    )
    assert (end.code, end.err) == (0, ""), "RANK-1"
    assert end.result is None
    left_open.check(own)
    assert (own / "by-another-name").read_text() == "kept", "what the training code brought is let go"


ALSO_BY_ANOTHER_NAME = """
brought = types.ModuleType("brought")
brought.log = open(os.path.join(sys.argv[1], "by-another-name"), "w")
brought.log.write("kept")
brought.os = os
sys.modules["brought"] = sys.modules["brought.again"] = brought
"""


@pytest.mark.parametrize(
    "last",
    [
        "import atexit; atexit.register(sys.exit, 3)",
        "import threading; threading.Thread(target=sys.exit, args=(3,)).start()",
        "import threading; threading._shutdown = sys.exit",
        "import atexit; atexit.register(sys.modules.clear)",
        "import builtins; sys.modules['gc'] = sys.modules['ctypes'] = sys.modules['signal'] = None",
        "import atexit, os; atexit.register(vars(os).clear)",
        "import atexit, builtins; atexit.register(vars(builtins).clear)",
        "import _thread; _thread.start_new_thread = sys.exit",
        "sys.stderr = sys.stdout = None; sys.excepthook = sys.exit; import atexit; atexit.register(lambda: 1 / 0)",
        # The signal comes where Python looks for one: in the midst of what ends the rank.
        "import atexit, os, signal; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3)); "
        "atexit.register(os.kill, os.getpid(), signal.SIGUSR1)",
    ],
)
def test_nothing_after_the_result_is_written_decides_the_exit_code(
    run_rank: RunRank, tmp_path: Path, last: str
) -> None:
    end = run_rank(script(tmp_path, f"import phalanx, sys\nphalanx.set_result(7)\n{last}\n"))
    assert (end.code, end.result) == (0, 7), end.err
    failed = run_rank(script(tmp_path, f"import sys\n{last}\nsys.exit(4)\n"))
    assert (failed.code, failed.left) == (4, set()), f"RANK-36: {failed.err}"


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("import atexit; atexit.register(os._exit, 3)", 3),
        (
            "import threading; wait = threading.main_thread().join; "
            "threading.Thread(target=lambda: (wait(), os._exit(3))).start()",
            3,
        ),
        ("import atexit; atexit.register(libc.abort)", -6),
        ("libc.on_exit(libc.abort, None)", -6),
        ("libc.on_exit(libc._exit, None)", 0),
        ("import atexit; atexit.register(ctypes.string_at, 0)", -11),
        ("import atexit; atexit.register(os.kill, os.getpid(), 9)", -9),
    ],
)
def test_a_result_and_its_promise_outlast_a_process_that_ends_badly(
    run_rank: RunRank, tmp_path: Path, last: str, code: int
) -> None:
    def train(last: str) -> int:
        import ctypes

        exec(last, {"os": os, "ctypes": ctypes, "libc": ctypes.CDLL(None)})
        return 7

    end = run_rank(sent(train, last))
    assert (end.code, end.left, end.result) == (code, {"owed", "result"}, 7), f"RANK-4: {end.err}"
    loads = "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
    end = run_rank(script(tmp_path, f"{loads}{last}\n"))
    assert (end.code, end.left) == (code, {"result"}), f"RANK-4: {end.err}"


@pytest.mark.parametrize(
    "late",
    [
        "atexit.register(lambda: (phalanx.set_result(7), os._exit(3)))",
        "wait = threading.main_thread().join; "
        "threading.Thread(target=lambda: (wait(), phalanx.set_result(7), os._exit(3))).start()",
    ],
)
def test_what_a_file_gives_after_its_end_is_no_result_and_no_promise(
    run_rank: RunRank, tmp_path: Path, late: str
) -> None:
    end = run_rank(script(tmp_path, f"import atexit, os, phalanx, threading\n{late}\n"))
    assert (end.code, end.left, end.result) == (3, {"result"}, None), "RANK-4"
    assert end.err.count("set_result was called after the end") == 1


@pytest.mark.parametrize(
    ("busy", "what"),
    [
        (
            "threading.Thread(target=threading.Event().wait).start()",
            "threads or exit handlers still busy 0 s",
        ),
        ("atexit.register(threading.Event().wait)", "threads or exit handlers still busy 0 s"),
        # It never lets Python run.
        ("atexit.register(ctypes.PyDLL(None).pause)", "Timeout (0:00:0"),
    ],
)
def test_what_is_still_busy_after_the_result_was_left_is_not_waited_for_for_ever(
    run_rank: RunRank, busy: str, what: str
) -> None:
    def train(busy: str) -> int:
        import atexit
        import ctypes
        import threading

        from phalanx.rank import ending

        ending.HANDLERS_SECONDS = ending.NATIVE_SECONDS = 0.4
        exec(busy, {"atexit": atexit, "ctypes": ctypes, "threading": threading})
        return 7

    end = run_rank(sent(train, busy))
    assert (end.code, end.left, end.result) == (1, {"owed", "result"}, 7), "RANK-3"
    assert what in end.err
    assert "in _end" in end.err, "its stacks are shown"


def test_a_rank_says_once_that_it_has_left_the_result_which_it_had_promised(
    run_rank: RunRank, tmp_path: Path
) -> None:
    assert run_rank(sent(int)).returned, "DRIVER-20"
    assert run_rank(script(tmp_path, "import phalanx; phalanx.set_result(7)")).returned
    assert not run_rank(script(tmp_path, "pass")).returned
    assert not run_rank(script(tmp_path, "import phalanx; phalanx.set_result(7); 1 / 0")).returned


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
    assert end.result == {"sys.exit(3)": 3, "1 / 0": 1}.get(end_of_child, 0), "RANK-7"
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
    assert (end.code, end.left) == (0, {"owed"}), "RANK-7: code 0 with a debt is a failure"
