"""`phalanx run` beside torchrun: what a training file finds, exit codes, signals, GPUs. No Spark, and no pyspark."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import as_python
from support.programs import eventually, gone
from support.tiers import whole

pytestmark = pytest.mark.timeout(120)

PHALANX = [sys.executable, "-m", "phalanx", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

FACTS = """
import json, os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
         "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"]
main = sys.modules["__main__"]
facts = {
    "argv": sys.argv, "name": __name__, "file": main.__file__, "path": sys.path[0], "cwd": os.getcwd(),
    "total": total.item(), "spec": getattr(main.__spec__, "name", None), "package": __package__,
    **{name: os.environ.get(name) for name in names},
}
with open(os.environ["FACTS"] + "/" + os.environ["RANK"], "w") as file:
    json.dump(facts, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, on whose path an import of pyspark fails."""
    shadow = tmp_path / "shadow" / "pyspark"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise ImportError('there is no pyspark here')\n")
    path = os.pathsep.join(filter(None, [str(shadow.parent), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    made = tmp_path / "project"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def ran(words: list[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, text=True, timeout=100, env={**os.environ, **(env or {})}
    )


def trained(text: str, *flags: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A run of a file with this text, whose ranks import no torch."""
    Path("train.py").write_text(text)
    return ran([*PHALANX, "--no-warm", *flags, "train.py"], env)


def facts_of(words: list[str], folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    done = ran(words, {"FACTS": str(folder)})
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


@pytest.mark.parametrize("how", ["file", pytest.param("module", marks=whole("a module in place of a file"))])
def test_a_training_finds_what_it_finds_under_torchrun(folder: Path, how: str) -> None:
    package = folder / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "task.py").write_text(FACTS)
    named = ["-m", "trainer.task"] if how == "module" else ["trainer/task.py"]
    what = ["--nproc_per_node", "2", "--max-restarts=3", *named, "--lr", "0.1", "--", "-x"]
    ours, theirs = (
        facts_of([*program, *what], folder / name)
        for name, program in (("ours", PHALANX), ("theirs", TORCHRUN))
    )
    assert ours == theirs, "LAUNCH-1"
    assert [rank["total"] for rank in ours] == [2.0, 2.0]


@pytest.mark.timeout(300)
def test_a_training_file_finds_what_python_gives_it_whatever_path_leads_to_it(
    folder: Path, tmp_path: Path
) -> None:
    for kind, file in as_python.made(folder).items():
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        done = ran([*PHALANX, "--no-warm", file, str(out), "--lr"])
        assert done.returncode == 0, f"{kind!a}: {done.stderr}"
        assert as_python.found(out, 0)["found"] == as_python.by_python(file, folder, out, "--lr"), ascii(kind)


@pytest.mark.parametrize("name", ["trainer.task", "trainer", "task", "zipped"])
def test_a_module_finds_what_python_gives_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    as_python.made(folder)
    (folder / "trainer").mkdir()
    for file in ("trainer/__init__.py", "trainer/__main__.py", "trainer/task.py", "task.py"):
        (folder / file).write_text("" if "init" in file else as_python.PROBE)
    with zipfile.ZipFile(folder / "zipped.zip", "w") as archive:
        archive.writestr("zipped.py", as_python.PROBE)
    # The working directory comes first for -m, wherever else it is on the path.
    shadow = tmp_path / "shadow"
    (shadow / "sibling.py").write_text("VALUE = 'a shadow'\n")
    path = [str(shadow), str(folder), str(folder / "zipped.zip"), os.environ["PYTHONPATH"]]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    out = tmp_path / "out"
    out.mkdir()
    done = ran([*PHALANX, "--no-warm", "-m", name, str(out), "--lr"])
    assert done.returncode == 0, done.stderr
    assert as_python.found(out, 0)["found"] == as_python.by_python(None, folder, out, "--lr", module=name)


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("sys.exit(7)", 7, "rank 1 "),
        ("raise KeyError('label')", 1, "KeyError: 'label'"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL"),
        ("sys.exit()", 0, ""),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_failed_first(
    folder: Path, code: str, exit_code: int, said: str
) -> None:
    text = f"import os, signal, sys, time\nif os.environ['RANK'] == '1': {code}\n"
    done = trained(text + ("time.sleep(60)\n" if exit_code else ""), "--nproc", "2", "--grace", "1")
    assert done.returncode == exit_code, f"LAUNCH-2: {done.stderr}"
    assert said in done.stderr
    assert "phalanx/launch" not in done.stderr, "the cause, and nothing of ours"


def test_all_ranks_start_again_after_any_failure_as_under_torchrun(folder: Path) -> None:
    text = """
import os
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("attempt", attempt, flush=True)
assert attempt == "1", "the first one fails"
"""
    done = trained(text, "--max_restarts", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[rank 0] attempt 1"
    assert trained(text, "--max-restarts", "1", "--restart-on", "signal").returncode == 1


def test_a_hang_is_told_with_the_stacks(folder: Path) -> None:
    done = trained(
        "import time\ndef stuck(): time.sleep(100)\nstuck()\n", "--hang-timeout", "2", "--grace", "1"
    )
    assert done.returncode == 1
    assert "in stuck" in done.stderr


LASTS = """
import os, signal, sys, time
def end(number, frame):
    open(f"ended-{os.environ['RANK']}", "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, end)
with open(f"new-{os.environ['RANK']}", "w") as file: file.write(str(os.getpid()))
os.rename(f"new-{os.environ['RANK']}", f"pid-{os.environ['RANK']}")
time.sleep(100)
"""


@pytest.fixture
def lasting(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of two ranks that have begun, in a session of its own as a shell's job is."""
    Path("train.py").write_text(LASTS)
    words = [*PHALANX, "--no-warm", "--nproc", "2", "--grace", "5", "train.py"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        eventually("both ranks have begun", 60, lambda: len(list(folder.glob("pid-*"))) == 2)
        yield run
        run.kill()


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_a_signal_ends_the_ranks_and_leaves_nothing(
    lasting: subprocess.Popen[bytes], folder: Path, number: int, exit_code: int
) -> None:
    below = [process.pid for process in psutil.Process(lasting.pid).children(recursive=True)]
    assert len(below) >= 2
    lasting.send_signal(number)
    assert lasting.wait(30) == exit_code
    eventually("no process is left", 30, lambda: gone(below))
    assert len(list(folder.glob("ended-*"))) == 2, "the ranks were told, and had the time to end"


def test_output_has_its_rank_and_is_kept(folder: Path) -> None:
    text = "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)\n"
    shown = trained(text, "--nproc", "2", "--log-dir", "logs", "-t", "3")
    assert sorted(shown.stdout.splitlines()) == [
        "[rank 0] err",
        "[rank 0] out 0",
        "[rank 1] err",
        "[rank 1] out 1",
    ]
    kept = [file.read_text().splitlines() for file in folder.glob("logs/**/*") if file.is_file()]
    assert sorted(map(sorted, kept)) == [["err", "out 0"], ["err", "out 1"]]
    assert trained(text, "--nproc", "2", "--local-ranks-filter", "1").stdout.count("[rank 0]") == 0


@pytest.mark.parametrize("flags", [[], ["--log-dir", "logs"]])
def test_a_failed_ranks_whole_output_outlives_the_command(
    folder: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    done = trained(
        "for line in range(1000): print('line', line)\nraise ValueError\n", "--logs", "errors", *flags
    )
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("Its whole output: ")]
    kept = Path(line.removeprefix("Its whole output: ").rpartition(" on ")[0])
    assert kept.read_text().startswith("line 0\nline 1\n")
    assert flags or kept.stat().st_mode & 0o777 == 0o600, "it may say what is nobody else's"
    assert kept.is_relative_to(folder / "logs") is bool(flags)
    left = {path.name for path in folder.iterdir()} - {"train.py", "logs"}
    assert left == ({kept.name} if not flags else set()), "and nothing else is left"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--nnodes", "2", "train.py"], "--nnodes is 2. phalanx run trains on one host."),
        (["--node_rank", "1", "train.py"], "--node-rank is 1."),
        (
            ["--rdzv-endpoint", "10.0.0.7:29400", "train.py"],
            "--rdzv-endpoint is 10.0.0.7:29400, another host",
        ),
        (["--master_addr=10.0.0.7", "train.py"], "--master-addr is 10.0.0.7, another host."),
        (["--nproc", "two", "train.py"], "--nproc-per-node is 'two'; it takes a number, gpu, cpu or auto"),
        (["--nproc", "gpu", "train.py"], "--nproc-per-node is gpu, and this host has no GPU"),
        (["--use-gpu", "train.py"], "the run needs 1 GPU; this host has no GPUs."),
        (["missing.py"], "missing.py"),
        (["-m", "missing.task"], "there is no module missing in "),
        (["--conf", "spark.executor.cores=2", "train.py"], "spark.executor.cores is not a Phalanx setting"),
        (["--restart-on", "bad luck", "train.py"], "bad luck"),
        (
            ["--conf", "spark.phalanx.logs.directory=hdfs://n/logs", "train.py"],
            "nothing here can write to a URI",
        ),
    ],
)
def test_what_can_not_be_is_one_sentence_and_starts_nothing(
    folder: Path, flags: list[str], sentence: str
) -> None:
    Path("train.py").write_text("open('started', 'w').close()\n")
    done = ran([*PHALANX, *flags])
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("phalanx run: ")
    assert sentence in line
    assert not Path("started").exists()


def test_flags_of_torchrun_for_its_rendezvous_are_taken(folder: Path) -> None:
    text = "import os\nprint(os.environ['MASTER_PORT'], os.environ['WORLD_SIZE'])\n"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = ["--rdzv-backend=c10d", "--rdzv_endpoint=localhost:0", "--rdzv_id=7", "--standalone"]
    done = trained(text, *endpoint, "--master-port", str(port), env={"PET_NPROC_PER_NODE": "2"})
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] {port} 2" for rank in (0, 1)], done.stderr


SMI = """#!/bin/sh
[ "$1" = -L ] || exit 3
echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-{first})'
echo 'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-{second})'
"""
SEEN = """
import os, time
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
while os.path.exists("go on"): time.sleep(0.05)
"""


def test_shells_have_different_gpus_and_one_too_many_is_told_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    # A lease is the whole machine's, and so these cards are nobody else's.
    first, second = (f"{os.getpid()}-{number}" for number in (1, 2))
    program.write_text(SMI.format(first=first, second=second))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    Path("go on").touch()
    Path("train.py").write_text(SEEN)
    words = [*PHALANX, "--no-warm", "train.py"]
    runs = []
    for card in (first, second):
        run = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        runs.append(run)
        assert run.stdout is not None
        assert run.stdout.readline() == f"[rank 0] sees GPU-{card}\n", "LAUNCH-4"
    refused = ran(words)
    assert refused.returncode == 2
    assert "the run needs 1 GPU; this host has 2 GPUs, of which 2 are in use by other runs." in refused.stderr
    by_number = ran(words, {"CUDA_VISIBLE_DEVICES": "1"})
    assert by_number.returncode == 2, "LAUNCH-4: a number is the same card"
    assert ran([*words[:-1], "--nproc", "3", "train.py"]).returncode == 2, "nor are they shared"
    Path("go on").unlink()
    for run in runs:
        run.communicate(timeout=30)
        assert run.returncode == 0
    both = ran([*words[:-1], "--nproc", "auto", "train.py"])
    assert sorted(both.stdout.splitlines()) == [
        f"[rank {rank}] sees GPU-{first},GPU-{second}" for rank in (0, 1)
    ]
    shared = ran([*words[:-1], "--nproc", "3", "train.py"])
    assert "3 ranks share 2 GPUs" in shared.stderr
    assert shared.stdout.count(f"sees GPU-{first},GPU-{second}\n") == 3
    assert ran([*words[:-1], "--no-gpu", "train.py"]).stdout == "[rank 0] sees \n"
