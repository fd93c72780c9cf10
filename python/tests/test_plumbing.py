"""What several rooms need: files that are whole or absent, hooks on imports, modules that travel by value."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from phalanx.plumbing.by_value import by_value
from phalanx.plumbing.import_hooks import after_import
from phalanx.plumbing.whole_file import whole_or_absent
from support.places import PYTHON

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_at_its_name_once_it_is_whole(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"before")
    with whole_or_absent(str(path), durable=durable) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before", "PLUMBING-6"
    assert path.read_bytes() == b"after"
    assert os.listdir(tmp_path) == ["result"]


def test_a_file_that_can_not_be_written_to_its_end_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "result"

    def write_half() -> None:
        with whole_or_absent(str(path)) as file:
            file.write(b"half of it")
            raise ValueError("the other half")

    with pytest.raises(ValueError, match="the other half"):
        write_half()
    assert os.listdir(tmp_path) == [], "PLUMBING-7"


def test_the_error_of_a_file_names_it(tmp_path: Path) -> None:
    path = tmp_path / "no folder" / "result"
    with pytest.raises(FileNotFoundError) as refused, whole_or_absent(str(path)):
        pass
    assert refused.value.filename == str(path)


def test_a_hook_imports_nothing_and_hears_of_a_module_once_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_with_a_hook.py").write_text("value = 1")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    heard = []

    def hear(module: object) -> None:
        heard.append(module.value)  # type: ignore[attr-defined]

    after_import({"module_with_a_hook"}, hear)
    after_import({"module_with_a_hook"}, hear)
    assert "module_with_a_hook" not in sys.modules, "PLUMBING-2"
    import module_with_a_hook  # type: ignore[import-not-found]

    assert heard == [1]
    spec = module_with_a_hook.__spec__
    assert (spec.origin, spec.name) == (str(tmp_path / "module_with_a_hook.py"), "module_with_a_hook"), (
        "PLUMBING-3"
    )
    assert module_with_a_hook.__loader__.get_source("module_with_a_hook") == "value = 1", "PLUMBING-3"
    del sys.modules["module_with_a_hook"]


def test_an_import_of_phalanx_is_light() -> None:
    """It happens in every rank, and in every process that torch's entry points reach."""
    program = """
import sys, threading
before = set(sys.modules)
import phalanx
print(sorted(name for name in set(sys.modules) - before), threading.active_count())
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.append({str(PYTHON)!r})\n{program}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert done.stdout.strip() == (
        "['__future__', 'phalanx', 'phalanx.feeding', 'phalanx.feeding.partitions', "
        "'phalanx.feeding.partitions.pyspark_loader', 'phalanx.plumbing', "
        "'phalanx.plumbing.import_hooks', 'phalanx.process_group', 'phalanx.process_group.registration', "
        "'phalanx.rank', 'phalanx.rank.contract'] 1"
    )


def test_a_module_goes_by_value_until_the_last_that_needs_it_is_done() -> None:
    from phalanx.plumbing import describe
    from pyspark import cloudpickle

    def size() -> int:
        return len(cloudpickle.dumps(describe.describe_type))

    by_name = size()
    first, second = by_value(describe), by_value(describe)
    first.__enter__()
    second.__enter__()
    assert size() > by_name
    first.__exit__(None, None, None)
    assert size() > by_name, "PLUMBING-1"
    second.__exit__(None, None, None)
    assert size() == by_name


def with_folder(tmp_path: Path, text: str) -> subprocess.Popen[str]:
    """A process that runs `text` with its temporary files in `tmp_path`, and waits for a line on stdin."""
    script = f"""
import os, sys
from phalanx.plumbing.own_folder import own_folder
{text}
print('there', flush=True)
sys.stdin.readline()"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


def test_a_processs_folder_goes_with_it_and_a_killed_ones_with_the_next(tmp_path: Path) -> None:
    killed = with_folder(tmp_path, "own_folder()")
    with killed:
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        killed.send_signal(signal.SIGKILL)
    assert folder.is_dir()
    living = with_folder(
        tmp_path,
        # a forked child that ends as any program does takes nothing with it
        "own_folder()\nif os.fork() == 0: sys.exit()\nos.wait()\nassert os.path.isdir(own_folder())",
    )
    with living:
        assert folder.is_dir(), "one that was made a moment ago may be about to be used"
        for entry in tmp_path.iterdir():
            os.utime(entry, (0, time.time() - 3600))
        after = with_folder(tmp_path, "own_folder()")
        assert not folder.exists(), "PLUMBING-4"
        after.communicate("\n", timeout=30)
        assert len(list(tmp_path.iterdir())) == 1, "that of the process that lives"
        living.communicate("\n", timeout=30)
    assert list(tmp_path.iterdir()) == []
