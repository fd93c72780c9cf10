"""A rank's entry as a real process: what it runs, leaves behind and ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phalanx.request.payload import file_payload, function_payload
from support import as_python
from support.one_rank import RankRun, as_main, script, sent

RunRank = Callable[..., RankRun]
pytestmark = pytest.mark.timeout(60)


def test_a_function_gets_its_arguments_and_its_result_comes_back(run_rank: RunRank) -> None:
    def train(a: int, *, b: int) -> dict[str, int]:
        print("step 1")
        return {"sum": a + b}

    end = run_rank(sent(train, 40, b=2))
    assert (end.code, end.out, end.err, end.result) == (0, "step 1\n", "", {"sum": 42})
    assert end.notes == ["rank ready", "user code"]
    assert end.left == {"owed", "result"}, "RANK-4, RANK-26"


def test_a_file_is_its_own_main(run_rank: RunRank, tmp_path: Path) -> None:
    (tmp_path / "sibling.py").write_text("VALUE = 5\n")
    payload = script(
        tmp_path,
        """
        import sys, pickle, phalanx
        import sibling
        class Net: pass
        assert pickle.loads(pickle.dumps(Net())).__class__ is Net
        assert sys.modules["__main__"].Net is Net
        assert __spec__ is None and __name__ == "__main__", (__spec__, __name__)
        phalanx.set_result((sys.argv, __file__, sys.path[0], sibling.VALUE))
        """,
        "--lr", 0.5,
    )  # fmt: skip
    end = run_rank(payload)
    path = str(tmp_path / "train.py")
    assert end.code == 0, end.err
    assert end.result == ([path, "--lr", "0.5"], path, str(tmp_path), 5)


def test_a_file_without_set_result_gives_none(run_rank: RunRank, tmp_path: Path) -> None:
    end = run_rank(script(tmp_path, "print('trained')"))
    assert (end.code, end.out, end.result) == (0, "trained\n", None)


@pytest.mark.parametrize("change", ["gone", "other"])
def test_a_rank_runs_the_callers_source_where_its_host_has_another(
    run_rank: RunRank, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    payload = script(
        folder, "import phalanx, sys\nphalanx.set_result((__file__, sys.path[0]))\n1 / 0  # the line"
    )
    path = folder / "train.py"
    path.unlink()
    if change == "gone":
        folder.rmdir()
    else:
        path.write_text("raise SystemExit('the old version')")
    end = run_rank(payload)
    assert end.error["type_name"] == "ZeroDivisionError", "RANK-19"
    own = str(end.directory / "script")
    assert f'File "{own}/train.py", line 3' in end.err
    assert "# the line" in end.err


@pytest.mark.parametrize("where", ["at its path", "in the working directory", "among Spark's files"])
def test_a_file_that_the_caller_has_not_is_the_hosts_own(
    run_rank: RunRank, tmp_path: Path, where: str
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "sibling.py").write_text("VALUE = 5\n")
    (folder / "train.py").write_text(
        "import phalanx, sibling, sys\nphalanx.set_result((__file__, sys.argv[1:], sibling.VALUE))\n"
    )
    path = str(folder / "train.py") if where == "at its path" else "train.py"
    payload = file_payload(path, ["--lr", 1], sys_path=[], elsewhere=True)
    env = {"PHALANX_SPARK_FILES": str(folder)} if where == "among Spark's files" else {}
    end = run_rank(payload, cwd=folder if where == "in the working directory" else tmp_path, **env)
    assert end.code == 0, end.err
    assert end.result == (str(folder / "train.py"), ["--lr", "1"], 5)


def test_a_folder_of_data_hides_no_program_that_spark_has_shipped(run_rank: RunRank, tmp_path: Path) -> None:
    here, shipped = tmp_path / "here", tmp_path / "shipped"
    for name in ("folder", "file"):
        (here / name).mkdir(parents=True)
    (shipped / "folder").mkdir(parents=True)
    for program in (shipped / "folder" / "__main__.py", shipped / "file"):
        program.write_text("import phalanx\nphalanx.set_result(__file__)\n")
        payload = file_payload(program.relative_to(shipped).parts[0], (), sys_path=[], elsewhere=True)
        end = run_rank(payload, cwd=here, PHALANX_SPARK_FILES=str(shipped))
        assert end.code == 0, end.err
        assert end.result == str(program)


def test_a_file_that_nobody_has_is_named_with_its_host(run_rank: RunRank, tmp_path: Path) -> None:
    import socket

    path = str(tmp_path / "train.py")
    end = run_rank(file_payload(path, (), sys_path=[], elsewhere=True))
    assert (end.code, end.error["type_name"], end.error["before_start"]) == (1, "FileNotFoundError", True)
    assert end.error["message"] == (
        f"there is no training file {path} on {socket.gethostname()}, and the caller has none, either"
    )


def test_a_syntax_error_in_a_file_is_the_users(run_rank: RunRank, tmp_path: Path) -> None:
    end = run_rank(script(tmp_path, "def train(:\n  pass"))
    assert (end.code, end.error["type_name"], end.error["before_start"]) == (1, "SyntaxError", False)
    assert str(tmp_path / "train.py") in end.error["traceback"]
    assert "phalanx" not in end.error["traceback"].replace(str(tmp_path), "")


def test_tracebacks_have_source_lines_of_cells_that_are_no_files(run_rank: RunRank) -> None:
    import linecache

    cell = "def train():\n    raise ValueError('in a cell')  # here\n"
    linecache.cache["<cell 3>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 3>")
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, "<cell 3>", "exec"), space)
    end = run_rank(sent(space["train"]))
    assert "raise ValueError('in a cell')  # here" in end.error["traceback"]
    assert "raise ValueError('in a cell')  # here" in end.err


def test_what_is_missing_at_the_executor_is_named_with_its_host(run_rank: RunRank, tmp_path: Path) -> None:
    import socket

    (tmp_path / "only_here.py").write_text("def train(): pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here  # type: ignore[import-not-found]

        payload = sent(only_here.train)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("only_here", None)
    end = run_rank(payload)
    assert (end.code, end.error["type_name"], end.error["before_start"]) == (1, "ModuleNotFoundError", True)
    assert "there is no module 'only_here' there" in end.error["message"]
    assert f"train can't be read back on {socket.gethostname()}" in end.error["message"]
    assert end.notes == ["rank ready", "raised"]


def test_the_callers_path_lets_the_rank_import_what_it_needs(run_rank: RunRank, tmp_path: Path) -> None:
    (tmp_path / "shipped.py").write_text("VALUE = 9\n")

    def train() -> int:
        import shipped  # type: ignore[import-not-found]

        value: int = shipped.VALUE
        return value

    end = run_rank(function_payload(train, (), {}, sys_path=[str(tmp_path)]))
    assert (end.code, end.result) == (0, 9), end.err


def test_the_working_directory_shadows_no_module_of_a_function(run_rank: RunRank, tmp_path: Path) -> None:
    folder = tmp_path / "cwd"
    folder.mkdir()
    (folder / "colorsys.py").write_text("raise RuntimeError('shadowed')")

    def train() -> str:
        import colorsys

        return colorsys.__name__

    assert run_rank(sent(train), cwd=folder).result == "colorsys"


def test_rank_0s_result_that_does_not_pickle_is_an_error_that_names_its_type(run_rank: RunRank) -> None:
    def train() -> Any:
        return (i for i in range(3))

    end = run_rank(sent(train))
    assert end.code == 1
    assert end.error["message"].startswith("the value that train returned (a generator) doesn't pickle: "), (
        "RANK-27"
    )
    assert "result" not in end.left
    assert "results.py" not in end.error["traceback"], "RANK-9"
    assert not end.error["before_start"]


def test_other_ranks_results_are_replaced_where_they_cannot_come_back(run_rank: RunRank) -> None:
    def generator() -> Any:
        return (i for i in range(3))

    def large() -> bytes:
        return b"x" * 5000

    end = run_rank(sent(generator), rank=1)
    assert end.code == 0, "RANK-27"
    assert end.result.reason.startswith(
        "rank 1: the value that generator returned (a generator) doesn't pickle"
    )
    end = run_rank(sent(large), rank=2, PHALANX_MAX_RESULT_BYTES="4096")
    assert "larger than 4096 bytes" in end.result.reason
    assert run_rank(sent(large), rank=2, PHALANX_MAX_RESULT_BYTES="8192").result == b"x" * 5000
    assert run_rank(sent(large), rank=0, PHALANX_MAX_RESULT_BYTES="4096").result == b"x" * 5000


def test_phases_arrive_and_a_node_that_does_not_listen_hurts_nobody(run_rank: RunRank) -> None:
    def train() -> None:
        import phalanx

        phalanx.phase("validation")
        phalanx.phase("é" * 5000)

    end = run_rank(sent(train))
    assert end.notes == ["rank ready", "user code", "validation", "é" * 60]
    assert run_rank(sent(train), PHALANX_NOTES_FD="99").code == 0, "RANK-25"
    assert run_rank(sent(train), listens=False).code == 0, "RANK-25"


def test_notes_never_go_into_a_file_that_took_over_the_descriptor(run_rank: RunRank, tmp_path: Path) -> None:
    def train(path: str) -> None:
        import os

        import phalanx

        os.closerange(3, 64)
        fds = [os.open(path, os.O_WRONLY | os.O_CREAT) for _ in range(20)]
        phalanx.phase("validation")
        assert len(fds) == 20

    end = run_rank(sent(train, str(tmp_path / "own.txt")))
    assert end.code == 0, end.err
    assert (tmp_path / "own.txt").read_text() == "", "RANK-25"


def test_processes_that_a_rank_starts_neither_inherit_nor_send_notes(run_rank: RunRank) -> None:
    def train() -> str:
        import os
        import sys

        import phalanx

        pid = os.fork()
        if pid == 0:
            phalanx.phase("from a child")
            os._exit(0)
        os.waitpid(pid, 0)
        listing = "import os; print(sorted(os.listdir('/proc/self/fd')), os.environ.get('PHALANX_NOTES_FD'))"
        return subprocess.check_output([sys.executable, "-c", listing], close_fds=False, text=True)

    end = run_rank(sent(train))
    assert end.result == "['0', '1', '2', '3'] None\n", "3 is the listed directory itself"
    assert "from a child" not in end.notes, "RANK-24"


def test_output_is_line_buffered_and_takes_any_character(run_rank: RunRank) -> None:
    def train() -> None:
        import os
        import sys

        print("é \udcff")
        os.write(1, b"second\n")
        print(sys.stdout.line_buffering)

    end = run_rank(sent(train), LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert (end.code, end.out) == (0, "é \\udcff\nsecond\nTrue\n")


def test_spawned_processes_know_a_functions_main(run_rank: RunRank, tmp_path: Path) -> None:
    payload = as_main(
        tmp_path,
        """
        import multiprocessing, pickle
        class Item:
            def __init__(self, n): self.n = n
        def double(item): return Item(item.n * 2)
        def train():
            assert pickle.loads(pickle.dumps(double)) is double
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return [item.n for item in pool.map(double, [Item(1), Item(2)])]
        """,
    )
    (tmp_path / "caller.py").unlink()
    end = run_rank(payload)
    assert end.code == 0, end.err
    assert end.result == [2, 4], "RANK-23"


def test_spawned_processes_know_a_files_main(run_rank: RunRank, tmp_path: Path) -> None:
    payload = script(
        tmp_path,
        """
        import multiprocessing, phalanx
        def double(n): return n * 2
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                phalanx.set_result(pool.map(double, [1, 2]))
        """,
    )
    end = run_rank(payload)
    assert (end.code, end.result) == (0, [2, 4]), end.err


@pytest.mark.parametrize("change", ["none", "gone", "other"])
def test_sources_of_mains_functions_and_classes_are_those_of_the_caller(
    run_rank: RunRank, tmp_path: Path, change: str
) -> None:
    payload = as_main(
        tmp_path,
        as_python.SOURCES
        + """
def train():
    import multiprocessing, sys
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return texts(), pool.map(texts, [None])[0], sys.modules["__main__"].__file__
        """,
    )
    plain = tmp_path / "plain.py"
    plain.write_text(as_python.SOURCES + "\nimport json; print(json.dumps(texts()))")
    done = subprocess.run([sys.executable, str(plain)], capture_output=True, check=True, timeout=50)
    expected = json.loads(done.stdout)
    assert expected[0] == "class Net:\n    lr = 3\n"
    caller = tmp_path / "caller.py"
    if change != "none":
        caller.unlink()
    if change == "other":
        caller.write_text("class Net: 'of another version'\nraise SystemExit('nobody is to run this')\n")
    end = run_rank(payload)
    assert end.code == 0, end.err
    assert end.result == (expected, expected, str(caller)), "RANK-23"


def test_a_class_of_main_without_a_function_brings_its_source(run_rank: RunRank, tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text("import inspect\ndef train(kind): return inspect.getsource(kind)\n")
    caller = tmp_path / "caller.py"
    caller.write_text(
        "import sys\nfrom library import train\nfrom phalanx.request.payload import function_payload\n"
        "class Net:\n    lr = 3\n"
        "sys.stdout.buffer.write(function_payload(train, (Net,), {}, sys_path=sys.path))\n"
    )
    done = subprocess.run([sys.executable, str(caller)], capture_output=True, check=True, timeout=50)
    caller.unlink()
    end = run_rank(done.stdout)
    assert (end.code, end.result) == (0, "class Net:\n    lr = 3\n"), end.err


def test_sources_of_a_notebooks_cells_are_what_they_are_there(run_rank: RunRank, tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    # A shell of its own in a process of its own: it takes the place of __main__.
    program = (
        "import sys; from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        f"shell.run_cell({as_python.SOURCES!r}); shell.run_cell('def train(): return texts()')\n"
        "import json; from phalanx.request.payload import function_payload\n"
        "payload = function_payload(shell.user_ns['train'], (), {}, sys_path=[])\n"
        "sys.stdout.buffer.write(json.dumps(shell.user_ns['texts']()).encode() + b'\\n' + payload)\n"
    )
    env = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=50, env=env
    )
    there, _, payload = done.stdout.partition(b"\n")
    end = run_rank(payload)
    assert end.code == 0, end.err
    assert end.result == json.loads(there), "RANK-23"


def test_a_script_in_a_zip_file_brings_its_sources(run_rank: RunRank, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "caller.zip", "w") as archive:
        archive.writestr(
            "__main__.py",
            as_python.SOURCES + "import sys\nfrom phalanx.request.payload import function_payload\n"
            "sys.stdout.buffer.write(function_payload(texts, (), {}, sys_path=[]))\n",
        )
    caller = [sys.executable, str(tmp_path / "caller.zip")]
    payload = subprocess.run(caller, capture_output=True, check=True, timeout=50).stdout
    (tmp_path / "caller.zip").unlink()
    end = run_rank(payload)
    assert end.code == 0, end.err
    assert end.result[0] == "class Net:\n    lr = 3\n"
    assert end.result[-1].startswith("    for thing in (Net, Config, "), (
        "a lambda has the line that it stands in"
    )


@pytest.mark.timeout(200)
def test_a_spawned_data_loader_reads_a_dataset_of_main(run_rank: RunRank, tmp_path: Path) -> None:
    payload = as_main(
        tmp_path,
        """
        from torch.utils.data import DataLoader, Dataset
        class Squares(Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return i * i
        def train():
            loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
            return [batch.tolist() for batch in loader]
        """,
    )
    end = run_rank(payload, timeout=150)  # three imports of torch
    assert (end.code, end.result) == (0, [[0, 1], [4, 9]]), end.err


def test_a_rank_imports_neither_torch_nor_spark(run_rank: RunRank) -> None:
    def train() -> list[str]:
        import sys

        return [
            m for m in ("torch", "pyspark", "numpy", "multiprocessing", "phalanx.errors") if m in sys.modules
        ]

    assert run_rank(sent(train)).result == [], "RANK-6"


def test_another_pythons_function_is_refused_in_words(run_rank: RunRank) -> None:
    def train() -> None: ...

    payload = sent(train).replace(b'"python": "3.', b'"python": "2.')
    end = run_rank(payload)
    assert end.code == 1
    assert end.error["before_start"]
    assert "was sent by Python 2." in end.error["message"]
