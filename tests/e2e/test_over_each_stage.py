"""The stages on a cluster: what Spark sees of a run, several runs at once, the wrong arguments."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from phalanx import TorchDistributor, TrainingError
from py4j.protocol import Py4JError
from pyspark import SparkContext
from support.outage import Network
from support.programs import eventually, gone, guards
from support.tiers import differs

pytestmark = [pytest.mark.timeout(150), pytest.mark.behaviour]


@pytest.fixture
def behind_another_address(stage: Any, spark: Any) -> Iterator[None]:
    """The driver's own address and the one that tasks are told are two, and there is no other way to it."""
    spark.conf.set("spark.phalanx.hub.bindAddress", "127.0.0.1")
    spark.conf.set("spark.phalanx.hub.host", "127.0.0.2")
    spark.conf.set("spark.phalanx.connect", "direct")
    spark.conf.set("spark.phalanx.connectTimeout", "1s")
    yield
    for name in ("hub.bindAddress", "hub.host", "connect", "connectTimeout"):
        spark.conf.unset(f"spark.phalanx.{name}")


@pytest.fixture
def started_without_the_hub(
    stage: Any, spark: Any, behind_another_address: None
) -> Iterator[Callable[..., Any]]:
    """Starts a run whose tasks are told an address that doesn't answer, as behind a firewall."""
    with contextlib.ExitStack() as sockets:

        def start(train: Callable[..., Any]) -> Any:
            started = stage.start(train)
            hub = eventually("the hub is open", 20, lambda: started._hub)
            port = int(hub.address.rpartition(":")[2])
            silent = sockets.enter_context(socket.socket())
            silent.bind(("127.0.0.2", port))
            # One connection waits to be accepted, and there is no room for another.
            silent.listen(0)
            sockets.enter_context(socket.create_connection(("127.0.0.2", port)))
            return started

        yield start


def group_of(rank_sum: float = 0.0) -> tuple[float, dict[str, str]]:
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    dist.destroy_process_group()
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "MASTER_ADDR",
    )
    return total.item() + rank_sum, {name: os.environ[name] for name in names}


@differs(
    "python",
    "local",
    "local-cold",
    "connect",
    why="each starts its ranks and tells them their places by code of its own",
)
def test_ranks_form_a_group_and_know_their_places(distributor: Any, request: pytest.FixtureRequest) -> None:
    # A task is a node, and in local mode there is one for all ranks: TYPES-19.
    has_one_node = request.node.callspec.params["distributor"].startswith("local")
    run = distributor.start(group_of, rank_sum=0.5)
    results = run.results(90)
    assert [total for total, _ in results] == [3.5, 3.5]
    for rank, (_, env) in enumerate(results):
        assert env == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank) if has_one_node else "0",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2" if has_one_node else "1",
            "GROUP_RANK": "0" if has_one_node else str(rank),
            "GROUP_WORLD_SIZE": "1" if has_one_node else "2",
            "MASTER_ADDR": "127.0.0.1",
        }


def test_with_a_host_as_the_node_the_tasks_on_it_count_their_ranks_together(stage: Any, spark: Any) -> None:
    spark.conf.set("spark.phalanx.localRanks", "host")
    try:
        results = stage.start(group_of).results(90)
    finally:
        spark.conf.unset("spark.phalanx.localRanks")
    names = "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"
    assert [[env[name] for name in names] for _, env in results] == [
        ["0", "2", "0", "1"],
        ["1", "2", "0", "1"],
    ]


@pytest.mark.parametrize("face", ["local", "local-cold", "python", "jvm"])
def test_each_rank_computes_with_the_cores_that_the_caller_names(
    face: str, two_ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # would win in local mode

    def threads() -> tuple[str, int]:
        import os

        import torch

        return os.environ["OMP_NUM_THREADS"], torch.get_num_threads()

    assert two_ranks(face, cpus_per_rank=2).start(threads).results(90) == [("2", 2), ("2", 2)], "NODE-38"


def test_ranks_of_two_tasks_on_a_host_share_memory_though_each_is_a_node(stage: Any) -> None:
    def train() -> tuple[float, list[str]]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("phalanx")
        total = torch.ones(1 << 16)
        dist.all_reduce(total)
        with open("/proc/self/maps") as maps:
            shared = {line.split()[4] for line in maps if "memfd:phalanx-collective" in line}
        dist.destroy_process_group()
        return total.mean().item(), sorted(shared)

    (total, inodes), others = stage.start(train).results(90)
    assert total == 2.0
    assert len(inodes) == 1, "one segment, by its inode"
    assert others == (total, inodes), "the other rank maps the same one"


def test_the_store_listens_at_the_port_that_was_asked_for_or_at_one_soon_after(
    stage: Any, spark: Any
) -> None:
    def port_of_the_store() -> int:
        import os

        return int(os.environ["MASTER_PORT"])

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spark.conf.set("spark.phalanx.store.port", str(port))
        try:
            assert port < stage.run(port_of_the_store) <= port + 15
        finally:
            spark.conf.unset("spark.phalanx.store.port")


def test_tasks_reach_the_driver_by_the_address_that_the_caller_names(
    stage: Any, behind_another_address: None, tmp_path: Path
) -> None:
    def train(go_on: str) -> int:
        import os
        import time

        print("seen while it runs", flush=True)
        while not os.path.exists(go_on):
            time.sleep(0.01)
        return int(os.environ["RANK"])

    go_on = tmp_path / "go on"
    run = stage.start(train, str(go_on))
    hub = eventually("the hub is open", 20, lambda: run._hub).address
    assert hub.startswith("127.0.0.2:")
    port = int(hub.rpartition(":")[2])
    # What stands in front of the driver: tasks that came before it have tried again.
    network = Network(f"127.0.0.1:{port}", ("127.0.0.2", port))
    eventually("its output is there", 60, lambda: "seen while it runs" in run.logs(0))
    go_on.touch()
    assert run.results(60) == [0, 1]
    assert network.connections >= 2


@differs("python", "local", "connect", why="a file goes to the ranks on another way")
def test_a_file_gets_its_arguments_and_leaves_its_result(distributor: Any, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("VALUE = 40\n")
    (tmp_path / "train.py").write_text(
        "import sys, phalanx, helper\n"
        "if __name__ == '__main__':\n"
        "    phalanx.set_result((sys.argv[1:], helper.VALUE + 2))\n"
    )
    assert distributor.run(str(tmp_path / "train.py"), "--lr", 0.5) == (["--lr", "0.5"], 42)
    (tmp_path / "silent.py").write_text("x = 1\n")
    assert distributor.run(str(tmp_path / "silent.py")) is None


def test_phases_come_in_order(distributor: Any) -> None:
    def train() -> None:
        import phalanx

        phalanx.phase("half way")

    distributor.run(train)
    names = [phase.name for phase in distributor.last_run.phases]
    expected = [
        "hub open",
        "first join",
        "all joined",
        "user code",
        "half way",
        "all ranks ended",
        "returned",
    ]
    assert [name for name in dict.fromkeys(names) if name in expected] == expected
    assert names.count("half way") == 2


@differs("python", "local", "connect", why="output comes from a Python worker, or from this process")
def test_output_is_shown_while_the_training_runs(distributor: Any, tmp_path: Path, capsys: Any) -> None:
    def train(flag: str) -> None:
        import os
        import time

        print("waiting to be seen")
        while not os.path.exists(flag):
            time.sleep(0.05)

    flag = tmp_path / "seen"
    run = distributor.start(train, str(flag))
    seen = ""

    def both() -> bool:
        nonlocal seen
        seen += capsys.readouterr().out
        return all(f"[rank {rank}] waiting to be seen\n" in seen for rank in range(2))

    eventually("both ranks' lines are shown", 60, both)
    assert not run.done
    flag.touch()
    assert run.result(60) is None


@differs("python", why="the sentence is another one")
def test_the_stage_that_is_taken_is_said(
    stage: Any, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "phalanx"):
        stage.run(lambda: None)
    wanted = "jvm" if request.node.callspec.params["stage"] == "jvm" else "python"
    assert [
        text for text in caplog.messages if text.startswith(f"Phalanx takes the {wanted} stage, because ")
    ]


def test_a_run_whose_tasks_reach_the_driver_by_no_way_says_what_to_set(
    started_without_the_hub: Callable[..., Any],
) -> None:
    with pytest.raises(TrainingError) as caught:
        started_without_the_hub(lambda: None).result(90)
    assert caught.value.kind == "start"
    said = str(caught.value)
    assert re.search(r"the task of partition [01] on \S+ can't reach the driver", said), said
    # The jvm stage's executors have the plugin, which finds no hub there, either.
    no_other = ", and it has no other way. ", "spark.phalanx.hub.port", "PhalanxPlugin"
    both = "directly: the hub at 127.0.0.2:", "nor through Spark's messages: "
    assert all(part in said for part in (both if "directly" in said else no_other)), said


def test_tasks_that_run_and_do_not_join_are_named_after_the_join_timeout(
    started_without_the_hub: Callable[..., Any], spark: Any
) -> None:
    spark.conf.set("spark.phalanx.connectTimeout", "90s")
    spark.conf.set("spark.phalanx.joinTimeout", "3s")
    try:
        run = started_without_the_hub(lambda: None)
    finally:
        spark.conf.unset("spark.phalanx.joinTimeout")
    with pytest.raises(TrainingError) as caught:
        run.result(60)
    assert caught.value.kind == "start"
    assert caught.value.message == (
        "the tasks of partitions 0, 1 did not join within 3s; 0 of 2 tasks have joined. "
        "Are the executors up, and can they connect to the driver?"
    )


@pytest.mark.classic
def test_cancelling_the_job_group_ends_the_ranks(stage: Any, spark: Any, tmp_path: Path) -> None:
    def train(folder: str) -> None:
        import os
        import time

        with open(os.path.join(folder, os.environ["RANK"]), "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)

    context = spark.sparkContext
    context.setJobGroup("the-users-group", "a description of the user's", interruptOnCancel=True)
    try:
        run = stage.start(train, str(tmp_path))
        pids = eventually(
            "both ranks run",
            60,
            lambda: (
                len(found := [int(p.read_text() or 0) for p in tmp_path.iterdir()]) == 2
                and all(found)
                and found
            ),
        )
        context.cancelJobGroup("the-users-group")
        with pytest.raises(TrainingError, match="the-users-group") as caught:
            run.result(60)
        assert caught.value.kind == "cancelled"
        eventually("no rank is left", 20, lambda: gone(pids))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


@pytest.mark.classic
def test_the_stage_has_a_readable_description_and_leaves_none_behind(stage: Any, spark: Any) -> None:
    def train() -> None:
        import time

        time.sleep(2)

    run = stage.start(train)
    tracker = spark.sparkContext._jsc.sc().statusStore()

    def described() -> bool:
        jobs = tracker.jobsList(None)
        running = [j for i in range(jobs.size()) if str((j := jobs.apply(i)).status()) == "RUNNING"]
        texts = [job.description() for job in running]
        return any(t.isDefined() and t.get() == "Phalanx: train, 2 ranks" for t in texts)

    eventually("the job is described", 30, described)
    run.result(60)
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


@pytest.mark.classic
def test_a_run_plans_no_query(stage: Any, spark: Any) -> None:
    queries = spark._jsparkSession.sharedState().statusStore()
    before = queries.executionsCount()
    assert stage.run(lambda: 1) == 1
    assert queries.executionsCount() == before, "STAGE-4"


@pytest.mark.classic
def test_where_python_may_have_no_rdds_a_run_goes_through_a_dataframe(
    two_ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise Py4JError("public org.apache.spark.api.java.JavaRDD is not whitelisted")

    distributor = two_ranks("python-cold")
    monkeypatch.setattr(SparkContext, "parallelize", refused)
    assert distributor.run(lambda: 1) == 1


@pytest.mark.classic
def test_two_runs_at_once_do_not_meet(spark: Any) -> None:
    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    runs = [distributor.start(group_of, rank_sum=float(i * 10)) for i in range(2)]
    assert [run.result(120)[0] for run in runs] == [3.0, 13.0]


def test_ten_runs_leave_no_thread_and_no_descriptor(spark: Any) -> None:
    import os

    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)

    def count() -> tuple[int, int]:
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("phalanx")]
        return len(threads), len(os.listdir("/proc/self/fd"))

    distributor.run(lambda: None)
    before = count()
    for _ in range(10):
        assert distributor.run(lambda: 5) == 5
    eventually("as many threads and descriptors as before", 10, lambda: count() <= before)
    assert not guards()


def test_more_ranks_than_the_cluster_has_slots_is_said_before_anything_runs(spark: Any) -> None:
    distributor = TorchDistributor(num_processes=3, local_mode=False, use_gpu=False)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"\b2\b") as caught:
        distributor.run(group_of)
    assert not isinstance(caught.value, TrainingError)
    assert time.monotonic() - began < 10
    assert distributor.last_run is None


@differs("local", why="the ranks' node is in the driver")
def test_a_result_that_does_not_pickle_is_named(distributor: Any) -> None:
    def train() -> Any:
        return (i for i in range(3))

    with pytest.raises(TrainingError, match=r"train returned .*generator.* doesn't pickle"):
        distributor.run(train)


def test_a_value_of_another_rank_that_does_not_pickle_hurts_nobody(distributor: Any) -> None:
    from phalanx import MissingResultError, UnavailableResult

    def train() -> Any:
        import os

        return "fine" if os.environ["RANK"] == "0" else (i for i in range(3))

    run = distributor.start(train)
    results = run.results(60, strict=False)
    assert results[0] == "fine"
    assert isinstance(results[1], UnavailableResult)
    assert "doesn't pickle" in results[1].reason
    with pytest.raises(
        MissingResultError, match=r"the result of rank 1 is missing: .*doesn't pickle"
    ) as caught:
        run.results()
    assert caught.value.results == results
    assert caught.value.missing == {1: results[1].reason}


def test_a_function_that_does_not_pickle_is_refused_at_once_and_names_the_variable(distributor: Any) -> None:
    lock = threading.Lock()

    def train() -> Any:
        return lock

    with pytest.raises(TypeError, match="lock"):
        distributor.run(train)
