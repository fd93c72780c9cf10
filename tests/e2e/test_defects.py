"""The known defects of pyspark's TorchDistributor 4.3.0 (D1 to D16), each as a test of what happens here instead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from phalanx import TrainingError
from support.programs import TWO_EXECUTORS, WARM_IF_ASKED, classic_conf, eventually, gone
from support.tiers import differs, faces_wanted, whole

pytestmark = [pytest.mark.timeout(120), pytest.mark.behaviour]


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_d01_failed_file_run_raises(distributor: Any, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import os, sys, time
        if os.environ["RANK"] == "1":
            with open(sys.argv[1], "w") as file:
                file.write(str(time.time()))
            raise SystemExit(3)
        time.sleep(600)
        """,
    )
    with pytest.raises(TrainingError) as caught:
        distributor.run(path, str(tmp_path / "at"))
    told = time.time() - float((tmp_path / "at").read_text())
    assert told < 5 + 1, "5 s and the grace"
    assert (caught.value.kind, caught.value.rank, caught.value.exit_code) == ("exit_code", 1, 3)


def test_d01_a_file_that_raises_brings_its_traceback(distributor: Any, tmp_path: Path) -> None:
    path = script(tmp_path, "def step():\n    raise KeyError('lr')\n\nstep()\n")
    with pytest.raises(TrainingError, match="KeyError: 'lr'") as caught:
        distributor.run(path)
    assert "train.py" in caught.value.traceback
    assert "step()" in caught.value.traceback


@differs("python", "local", "connect", why="failures come back on a way of their own")
def test_d02_the_ranks_own_exception_is_the_cause(distributor: Any) -> None:
    def train() -> None:
        import os
        import time

        if os.environ["RANK"] == "1":
            raise ValueError("the learning rate is negative")
        time.sleep(600)

    with pytest.raises(TrainingError) as caught:
        distributor.run(train)
    error = caught.value
    assert isinstance(error.__cause__, ValueError)
    assert str(error.__cause__) == "the learning rate is negative"
    assert (error.kind, error.rank, error.exception_type) == ("exception", 1, "ValueError")
    assert "in train" in error.traceback
    assert str(error).startswith("rank 1 (")
    assert [report.rank for report in error.ranks] == [0, 1]


def test_d02_a_rank_that_missed_its_peer_is_not_the_cause(distributor: Any) -> None:
    def train() -> None:
        import os
        import signal

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(4))

    with pytest.raises(TrainingError) as caught:
        distributor.run(train)
    assert (caught.value.kind, caught.value.rank, caught.value.signal) == ("signal", 1, 9)


def test_d03_bytes_that_are_not_utf8_are_shown_and_kill_nobody(distributor: Any, capsys: Any) -> None:
    def train() -> str:
        import os

        os.write(1, b"before \xff\xfe after\n")
        os.write(2, b"\xc3\n")
        return "alive"

    assert distributor.run(train) == "alive"
    assert "[rank 0] before \ufffd\ufffd after\n" in capsys.readouterr().out


def test_d04_a_broken_view_of_the_logs_never_ends_the_training(
    distributor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise OSError(107, "Transport endpoint is not connected")

        def flush(self) -> None:
            raise OSError(107, "Transport endpoint is not connected")

    def train() -> int:
        for i in range(1000):
            print("line", i)
        return 7

    monkeypatch.setattr(sys, "stdout", Broken())
    assert distributor.run(train) == 7


def test_d05_the_store_listens_before_any_rank_starts_and_nobody_opens_its_port_again(
    distributor: Any, tmp_path: Path
) -> None:
    def train(folder: str) -> str:
        import os
        import socket
        import time

        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection(address, timeout=5).close()
        try:
            socket.create_server(address).close()
            found = "free for anybody"
        except OSError:
            found = "taken by the one who told it"
        # The store ends with rank 0: neither leaves before the other has looked.
        os.mkdir(os.path.join(folder, os.environ["RANK"]))
        while len(os.listdir(folder)) < 2:
            time.sleep(0.02)
        return found

    run = distributor.start(train, str(tmp_path))
    assert run.results(60) == ["taken by the one who told it"] * 2


def test_d06_each_run_has_a_rendezvous_of_its_own_also_after_a_failure(distributor: Any) -> None:
    def train(fail: bool) -> tuple[str, str, str]:
        import os

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
        if fail:
            raise RuntimeError("first try")
        names = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"
        assert ranks.item() == 2
        return tuple(os.environ[name] for name in names)  # type: ignore[return-value]

    with pytest.raises(TrainingError, match="first try"):
        distributor.run(train, True)
    first, second = distributor.run(train, False), distributor.run(train, False)
    assert first[0] != second[0]
    assert first[1:] == ("0", "True")


@differs("python", "local", why="it is the environment of the worker, or the driver, that starts the ranks")
def test_d07_the_callers_and_the_workers_environment_stay_as_they_were(distributor: Any, spark: Any) -> None:
    before = dict(os.environ)
    seen = distributor.run(lambda: __import__("os").environ["CUDA_VISIBLE_DEVICES"])
    assert seen == ""
    assert dict(os.environ) == before

    def names(batches: Any) -> Any:
        import os

        import pyarrow as pa

        for _ in batches:
            pass
        found = [
            name
            for name in os.environ
            if name in ("CUDA_VISIBLE_DEVICES", "RANK", "MASTER_ADDR", "WORLD_SIZE")
        ]
        yield pa.RecordBatch.from_arrays([pa.array(found, pa.string())], ["name"])

    assert spark.range(0, 2, 1, 2).mapInArrow(names, "name string").collect() == []


GPU_STAGE = """
import json, os, sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.config(map=json.loads(sys.argv[2]))
    .config("spark.worker.resource.gpu.amount", "1").config("spark.worker.resource.gpu.discoveryScript", sys.argv[1])
    .config("spark.executor.resource.gpu.amount", "1").config("spark.task.resource.gpu.amount", "1")
    .config("spark.executor.resource.gpu.discoveryScript", sys.argv[1]).getOrCreate())
spark.sparkContext.setLogLevel("OFF")
from phalanx import TorchDistributor
def train():
    import os
    names = "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"
    return [os.environ[name] for name in names]
results = {}
for stage in sys.argv[3:]:
    spark.conf.set("spark.phalanx.stage", stage)
    for node in ("task", "host"):
        distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=True, local_ranks=node)
        results[f"{stage} {node}"] = distributor.start(train).results(60)
print("RESULTS", json.dumps(results))
spark.stop()
"""


@pytest.fixture(scope="module")
def gpu_stages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[list[str]]]:
    """By stage: what two ranks on one host see whose tasks have one GPU each, as a discovery script says."""
    folder = tmp_path_factory.mktemp("gpus")
    discovery = folder / "discover"
    # Both workers of the local cluster run it: the first to come gets the one address, the second the other.
    discovery.write_text(
        f"#!/bin/sh\nif mkdir {folder}/first-$PPID 2>/dev/null; then :; fi\n"
        f"exec {sys.executable} {folder}/address.py\n"
    )
    (folder / "address.py").write_text(
        "import json, os\n"
        "import pathlib\n"
        "folder = pathlib.Path(__file__).parent\n"
        "names = ['MIG-3f2a-11', 'GPU-aa-0001']\n"
        "for i in range(64):\n"
        "    try:\n"
        "        os.mkdir(folder / f'turn{i}')\n"
        "        break\n"
        "    except FileExistsError:\n"
        "        pass\n"
        "print(json.dumps({'name': 'gpu', 'addresses': [names[i % 2]]}))\n"
    )
    discovery.chmod(0o755)
    program = folder / "program.py"
    program.write_text(GPU_STAGE)
    conf = classic_conf(TWO_EXECUTORS) | WARM_IF_ASKED
    done = subprocess.run(
        [
            sys.executable,
            str(program),
            str(discovery),
            json.dumps(conf),
            *faces_wanted(request, ["python", "jvm"]),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULTS")]
    assert found, done.stdout + done.stderr
    results: dict[str, list[list[str]]] = json.loads(found[0].removeprefix("RESULTS"))
    return results


@pytest.fixture
def gpu_stage(over: str, gpu_stages: dict[str, list[list[str]]]) -> dict[str, list[list[str]]]:
    """What the ranks see over one stage: with a `task` as the node, and with a `host`."""
    return {node: gpu_stages[f"{over} {node}"] for node in ("task", "host")}


@whole("what GpuSuite has from Scala")
@pytest.mark.parametrize("over", ["python", "jvm"])
def test_d08_gpus_of_any_name_are_taken(over: str, gpu_stage: dict[str, list[list[str]]]) -> None:
    seen = {address for ranks in gpu_stage.values() for rank in ranks for address in rank[4].split(",")}
    assert seen <= {"MIG-3f2a-11", "GPU-aa-0001"}
    assert seen


@whole("what GpuSuite has from Scala")
@pytest.mark.parametrize("over", ["python", "jvm"])
def test_d09_one_gpu_a_task_on_one_host_gives_right_local_ranks(
    over: str,
    gpu_stage: dict[str, list[list[str]]],
) -> None:
    apart = [["0", "0", "1", "2"], ["1", "0", "1", "2"]]
    own = [rank[4] for rank in gpu_stage["task"]]
    assert [rank[:4] for rank in gpu_stage["task"]] == apart
    assert not any("," in gpu for gpu in own), "cuda:0 is the rank's own, and all that it sees"
    both = [rank[4].split(",") for rank in gpu_stage["host"]]
    if len(set(both[0])) == 2:
        assert [rank[:4] for rank in gpu_stage["host"]] == [["0", "0", "2", "1"], ["1", "1", "2", "1"]]
        assert both[0] == both[1], "cuda:LOCAL_RANK is the rank's own on both"
        assert sorted(both[0]) == sorted(own), "each task has the other GPU"
    else:
        # Both workers named the same GPU: then each task is a host of its own.
        assert [rank[:4] for rank in gpu_stage["host"]] == apart


def test_d10_the_callers_random_numbers_go_on(distributor: Any) -> None:
    import random

    random.seed(42)
    expected = [random.random() for _ in range(4)]
    random.seed(42)
    first = [random.random() for _ in range(2)]
    distributor.run(lambda: None)
    assert first + [random.random() for _ in range(2)] == expected


@differs("python", "local", "connect", why="a cancel reaches the node through Spark, or the driver itself")
def test_d11_after_a_cancel_the_whole_tree_is_gone(distributor: Any, tmp_path: Path) -> None:
    def train(folder: str) -> None:
        import os
        import signal
        import subprocess
        import time

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(
            ["setsid", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"], start_new_session=True
        )
        with open(os.path.join(folder, os.environ["RANK"]), "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        time.sleep(600)

    run = distributor.start(train, str(tmp_path))

    def pids() -> list[int]:
        found = [int(pid) for path in tmp_path.iterdir() for pid in path.read_text().split()]
        return found if len(found) == 4 else []

    tree = eventually("two ranks with a child each", 60, pids)
    began = time.monotonic()
    run.cancel("the user has seen enough")
    with pytest.raises(TrainingError, match="the user has seen enough") as caught:
        run.result(60)
    assert caught.value.kind == "cancelled"
    assert gone(tree), f"alive {time.monotonic() - began:.1f} s after the cancel"


def test_d13_long_lines_are_whole_and_say_whose_they_are(distributor: Any, capsys: Any) -> None:
    def train() -> None:
        print("x" * 50_000)

    distributor.run(train)
    out = capsys.readouterr().out
    for rank in range(2):
        assert f"[rank {rank}] {'x' * 50_000}\n" in out


def test_d13_progress_bars_of_rank_0_move_in_place(distributor: Any, capsys: Any) -> None:
    def train() -> None:
        import sys
        import time

        for percent in (10, 60, 100):
            sys.stderr.write(f"\r{percent}%")
            sys.stderr.flush()
            time.sleep(0.3)
        sys.stderr.write("\n")

    distributor.run(train)
    out = capsys.readouterr().out
    assert "\r[rank 0] 10%" in out
    assert "\r[rank 0] 60%" in out
    assert "[rank 1] 10%" not in out
    assert "[rank 1] 100%\n" in out


def test_d15_large_results_and_those_of_all_ranks_arrive(distributor: Any) -> None:
    def train() -> tuple[int, bytes]:
        import os

        return int(os.environ["RANK"]), b"w" * (24 << 20)

    run = distributor.start(train)
    assert run.result(60) == (0, b"w" * (24 << 20))
    assert [rank for rank, _ in run.results()] == [0, 1]


def test_d16_addresses_of_hosts_are_parsed_as_addresses() -> None:
    from phalanx.stages.python_task import host_of

    assert host_of("10.0.0.1:7077") == "10.0.0.1"
    assert host_of("worker.example:7077") == "worker.example"
    assert host_of("[fd00::1]:7077") == "fd00::1"
    assert host_of("fd00::1") == "fd00::1"
    assert host_of("worker.example") == "worker.example"
