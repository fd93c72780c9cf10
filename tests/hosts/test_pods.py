"""Runs and their faults in pods: containers as Kubernetes has them, made without it.

What a pod here has of a real one says tests/support/pods.py. One driver serves all tests: it is a pod, too, of which
it is process 1. The second pod's /dev/shm has 1 MiB, and what replaces it may execute nothing on its volume.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from support.cluster import Standalone
from support.hosts import TwoHosts, Unavailable
from support.places import APPS
from support.pods import USER, Pods, files, first_process, processes
from support.programs import Program, eventually
from support.tiers import whole

pytestmark = [pytest.mark.timeout(400), whole("pods")]

RANKS = 4
SHM_MIB = (64, 1)
STAGES = ("python", "jvm")


@dataclass
class Left:
    """What is in a pod, beside its process 1."""

    commands: dict[int, str]
    zombies: dict[int, str]
    """The names of those that have ended, and that nobody has waited for; not the shell of Spark's own script."""
    tmp: list[str]
    shm: list[str]

    @staticmethod
    def of(pod: Program) -> Left:
        commands, zombies = {}, {}
        for process in processes(pod):
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    if process.name() != "bash":
                        zombies[process.pid] = process.name()
                else:
                    commands[process.pid] = " ".join([process.name(), *process.cmdline()])
            except psutil.NoSuchProcess:
                continue
        return Left(commands, zombies, files(pod, "/tmp"), files(pod, "/dev/shm"))

    @staticmethod
    def when_idle(pod: Program) -> Left:
        """When those who wait for others have had the time to: Spark's daemon for its workers, guards for ranks."""
        until = time.monotonic() + 10
        while (left := Left.of(pod)).zombies and time.monotonic() < until:
            time.sleep(0.2)
        return left


@dataclass
class Seen:
    """What became of all runs, and what they left in the pods."""

    driver: str
    told: dict[str, Any]
    lost: dict[str, Any]
    again: dict[str, Any]
    noexec: dict[str, Any]
    seconds_to_loss: float
    after_runs: list[Left]
    after_loss: Left
    at_the_end: Left
    folders_at_the_end: list[str]

    def results(self, stage: str, run: str) -> list[Any]:
        found = self.told[stage][run]
        assert "results" in found, found
        return list(found["results"])


@pytest.fixture(scope="module")
def pods(hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    try:
        made = Pods(hosts, tmp_path_factory.mktemp("pods") / "volume", shm_mib=SHM_MIB)
    except Unavailable as problem:
        pytest.skip(str(problem))
    yield made
    made.remove()


@pytest.fixture(scope="module")
def cluster(pods: Pods) -> Iterator[Standalone]:
    """A worker in each pod, and the master in a third one."""
    made = Standalone(pods.volume, [pods.host(0), pods.host(1)])
    yield made
    made.stop()


@pytest.fixture(scope="module")
def seen(pods: Pods, cluster: Standalone) -> Seen:
    address = pods.hosts.addresses[0]
    conf = cluster.conf(executor_cores=2) | {
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.executor.memory": "600m",
    }
    folder = pods.volume / "runs"
    folder.mkdir()
    folder.chmod(0o777)
    command = [sys.executable, APPS / "in_pods.py", folder, "unlimited" if pods.no_limit else "limited"]
    host = pods.host(0, limited=False)
    with host.start(command, folder / "out", env={"DRIVER_CONF": json.dumps(conf)}) as driver:

        def says(word: str, within: float) -> Any:
            driver.waits_for(word, within, lambda: f"\n{word} " in driver.text)
            return driver.printed(word)

        def second_pod_ends_amid(run: str) -> None:
            def all_wait() -> bool:
                return len(list((folder / run).glob("[0-3]"))) == RANKS

            driver.waits_for(f"ranks of {run}", 60, all_wait)
            first_process(cluster.workers[1]).kill()

        told = says("SEEN", 240)
        after_runs = [Left.when_idle(pod) for pod in cluster.workers]
        (folder / "go").touch()
        second_pod_ends_amid("LOST")
        began = time.monotonic()
        lost = says("LOST", 60)
        seconds = time.monotonic() - began
        after_loss = Left.when_idle(cluster.workers[0])
        cluster.hosts[1] = pods.host(1, noexec=True)
        cluster.restart_worker(1)
        second_pod_ends_amid("AGAIN")
        cluster.restart_worker(1)
        again, noexec = says("AGAIN", 90), says("NOEXEC", 60)
        assert driver.ends(60) == 0, driver.text

        def executors_have_ended() -> bool:
            return not any(
                "CoarseGrained" in command for command in Left.of(cluster.workers[0]).commands.values()
            )

        eventually("the executor ends with the application", 30, executors_have_ended)
        eventually("the pod is empty", 10, lambda: not Left.of(cluster.workers[0]).commands)
        local = pods.volume / "local-0"
        return Seen(
            driver.text,
            told,
            lost,
            again,
            noexec,
            seconds,
            after_runs,
            after_loss,
            Left.of(cluster.workers[0]),
            [str(path) for path in local.glob("spark-*/executor-*/**/phalanx*")],
        )


@pytest.mark.parametrize("over", [*STAGES, "local"])
def test_ranks_in_pods_train_over_both_backends_with_no_rights(over: str, seen: Seen, pods: Pods) -> None:
    results = seen.results(over, "trains")
    assert [rank["sum"] for rank in results] == [len(results) * (len(results) + 1) / 2] * len(results)
    for rank in results:
        assert rank["losses"]["phalanx"] == pytest.approx(rank["losses"]["gloo"], rel=1e-5)
        assert rank["losses"]["gloo"][0] > rank["losses"]["gloo"][-1]
        # As it is in a pod; else nothing here would be tested.
        assert rank["user"] == USER
        assert set(rank["capabilities"].values()) == {0}
        assert (rank["no new privileges"], rank["seccomp"]) == ("1", "2")
        assert rank["writes"] == []
        assert not rank["executes in /tmp"]
        assert not rank["traces"]
    shm = {rank["host"]: rank["shm"] >> 20 for rank in results}
    if over == "local":
        assert shm == {pods.hosts.names[0]: 64}
        assert {rank["first process"] for rank in results} == {"python"}, "the driver"
    else:
        assert shm == dict(zip(pods.hosts.names, SHM_MIB, strict=True))
        assert {rank["first process"] for rank in results} == {"java"}


def test_the_output_of_pods_reaches_the_driver(seen: Seen) -> None:
    for rank in range(RANKS):
        assert seen.driver.count(f"[rank {rank}] the sum is 10.0\n") == len(STAGES)


def test_rows_of_a_dataframe_reach_ranks_of_the_other_pod(seen: Seen) -> None:
    assert "results" in seen.told["feeds"], seen.told["feeds"]
    fed = seen.told["feeds"]["results"]
    assert sorted(row for rows in fed for row in rows) == list(range(4000))


@pytest.mark.parametrize("over", [*STAGES, "local"])
def test_the_cause_of_a_rank_in_a_pod_is_told(over: str, seen: Seen, pods: Pods) -> None:
    told = seen.told[over]["fails"]
    assert (told["kind"], told["rank"]) == ("exception", 1)
    host = pods.hosts.names[0] if over == "local" else r"10\.213\.7\.[12]"
    assert re.fullmatch(rf"rank 1 \({host}\) raised KeyError: 'no such column'", told["message"])
    assert "in fails" in told["text"]


@pytest.mark.parametrize("over", [*STAGES, "local"])
def test_a_killed_rank_of_a_pod_is_named_and_all_start_again_in_place(
    over: str, seen: Seen, pods: Pods
) -> None:
    results = seen.results(over, "is killed")
    assert {attempt for attempt, _ in results} == {"1"}
    last = len(results) - 1
    host = pods.hosts.names[0] if over == "local" else r"10\.213\.7\.[12]"
    line = rf"^\[phalanx\] restart 1 of 1: rank {last} \({host}\) was ended by SIGKILL$"
    found = re.findall(line, seen.driver, re.MULTILINE)
    assert len(found) == (1 if over == "local" else len(STAGES)), seen.driver


@pytest.mark.parametrize("over", STAGES)
def test_a_rank_over_the_memory_limit_of_its_pod_is_told_as_that(over: str, seen: Seen, pods: Pods) -> None:
    if pods.no_limit:
        pytest.skip(f"no memory cgroup can be made here: {pods.no_limit}")
    told = seen.told[over]["hoards"]
    assert (told["kind"], told["rank"]) == ("out_of_memory", 3), told
    assert re.match(
        r"rank 3 \(10\.213\.7\.[12]\) was killed by the kernel because memory ran out", told["message"]
    )
    assert "spark.executor.memoryOverhead" in told["message"]


@pytest.mark.parametrize("over", STAGES)
def test_a_data_loader_that_fills_a_small_dev_shm_says_so(over: str, seen: Seen, pods: Pods) -> None:
    told = seen.told[over]["fills shm"]
    assert told["kind"] == "exception", told
    assert pods.hosts.addresses[1] in told["message"]
    assert re.search(r"shared memory", told["text"]), told


def test_the_doctor_finds_what_is_scarce_in_the_pods(seen: Seen, pods: Pods) -> None:
    found = {(level, host, check): text for level, host, check, text in seen.told["doctor"]}
    small = [text for (level, _, check), text in found.items() if (level, check) == ("error", "/dev/shm")]
    assert len(small) == 1, found
    assert "1 MiB" in small[0]
    assert any(check == "noexec" and "/tmp" in text for (_, _, check), text in found.items()), found
    errors = [key for key in found if key[0] == "error"]
    assert len(errors) == 1, found


def test_a_pod_that_is_killed_whole_is_the_cause_and_nothing_is_left_in_the_other(
    seen: Seen, pods: Pods
) -> None:
    assert seen.lost["kind"] == "lost_node", seen.lost
    assert pods.hosts.addresses[1] in seen.lost["message"]
    assert seen.seconds_to_loss < 20
    assert not [command for command in seen.after_loss.commands.values() if "sleep 500" in command]


def test_a_pod_in_place_of_one_that_was_killed_takes_its_ranks(seen: Seen, pods: Pods) -> None:
    assert sorted(seen.again["results"]) == sorted(f"{name} 1" for name in pods.hosts.names * 2)
    [line] = re.findall(r"^\[phalanx\] restart 1 of 1: .*submitted again$", seen.driver, re.MULTILINE)
    assert pods.hosts.addresses[1] in line


def test_where_nothing_may_be_executed_the_jvm_stage_says_so_and_what_to_mount(
    seen: Seen, pods: Pods
) -> None:
    assert seen.noexec.get("kind") == "start", seen.noexec
    said = seen.noexec["message"]
    assert (
        f"Phalanx can't start on {pods.hosts.addresses[1]}: Phalanx can't unpack its files: nothing " in said
    )
    assert "nothing may be executed there (noexec): " in said
    assert ", /tmp, " in said


def test_runs_leave_no_zombie_though_process_1_waits_for_nobody(seen: Seen) -> None:
    for left in [*seen.after_runs, seen.after_loss]:
        assert left.zombies == {}, left
    # The executor has ended, and Spark's daemon after it, with its workers. If the guard of a worker's pool ends after
    # the worker, nobody is there to wait for it either, until the pod ends.
    spark = {pid for pid, command in seen.after_loss.commands.items() if "pyspark.daemon" in command}
    ours = [name for pid, name in seen.at_the_end.zombies.items() if pid not in spark]
    assert ours in ([], ["phalanx-guard"]), seen.at_the_end


def test_runs_leave_no_file_in_the_pods(seen: Seen) -> None:
    for left in [*seen.after_runs, seen.after_loss, seen.at_the_end]:
        assert not [name for name in left.tmp if "phalanx" in name or name.startswith("tmp")], left
        # What a data loader's worker could not fill is torch's own, and empty.
        assert not [name for name in left.shm if not name.startswith("torch_")], left
    assert seen.folders_at_the_end == []
