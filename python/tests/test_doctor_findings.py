"""What the doctor makes of facts: tables of what hosts tell, and the findings that follow; its report."""

from __future__ import annotations

import copy
import errno
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from phalanx.diagnosis.doctor import doctor
from phalanx.diagnosis.executors import Executor
from phalanx.diagnosis.finding import Finding, Need
from phalanx.diagnosis.findings import judged, lost_executors
from phalanx.diagnosis.gang import judged_run, judged_time_out
from phalanx.diagnosis.report import Report
from phalanx.diagnosis.stage import Seen
from support.places import ROOT

pytestmark = pytest.mark.timeout(60)

GIB = 1 << 30
HOSTS = ["a", "b", "c", "d"]
GPU = {"index": "0", "name": "H100", "driver_version": "580.1", "memory.total": "80000", "memory.used": "10"}


def facts(host: str) -> dict[str, Any]:
    """What a host tells that is in order, among HOSTS."""
    address = f"10.0.0.{HOSTS.index(host) + 1}"
    disk = {"folder": "/tmp", "total": 90 * GIB, "free": 80 * GIB, "files": 0, "files_free": 0, "runs": True}
    others = [other for other in HOSTS if other != host]
    return {
        "partition": HOSTS.index(host),
        "host": host,
        "lead": True,
        "everyone": [[at, name] for at, name in enumerate(HOSTS)],
        "address": address,
        "interface": {"name": "eth0", "address": address, "mtu": 9000},
        "task_gpus": ["0"],
        "driver_link": {"who": -1, "ahead": 0.001, "error": 0.002, "seconds": 0.004},
        "python": {
            "version": "3.11.7", "implementation": "CPython", "executable": "/usr/bin/python3", "glibc": "2.36",
        },
        "packages": {"torch": "2.9.0", "pyarrow": "20", "pandas": "2.2", "numpy": "2.1", "phalanx": "1"},
        "jars": ["phalanx-spark_2.13-1.jar"],
        "names": {"hostname": host, "driver": "drv", "own": [address], "to_driver": ["10.0.0.99"], "not_own": []},
        "memory": {"total": 64 * GIB, "available": 60 * GIB, "limit": None},
        "cpu": {"cores": 8, "quota": None, "passes": 2000.0, "load": 1.0},
        "shm": {"folder": "/dev/shm", "total": 8 * GIB, "free": 8 * GIB, "files": 0, "files_free": 0},
        "disks": [disk],
        "limits": {
            "descriptors": 65536, "descriptors_hard": 65536, "processes": None, "address_space": None,
            "address_space_of_spark": None,
            "locked": None, "pids": None,
        },
        "kernel": {"missing": {}, "seccomp": 2, "no_new_privileges": False, "namespaces": {}},
        "notice": {"command": "sh /opt/notice.sh", "code": 1, "said": "", "notice": None},
        "guard": {"path": "/x/phalanx-guard", "there": True, "runs": True},
        "torch": {"version": "2.9.0+cu128", "cuda": "12.8", "nccl": "2.27.3", "distributed": True, "devices": 1},
        "gpus": {"devices": ["/dev/nvidia0"], "gpus": [GPU], "visible": None},
        "links": [
            {"to": other, "address": f"10.0.0.{HOSTS.index(other) + 1}", "port": 4000, "who": 0, "ahead": 0.001,
             "error": 0.002, "addresses": [], "name_leads_to": [f"10.0.0.{HOSTS.index(other) + 1}"]}
            for other in others
        ],
        "speeds": [{"to": other, "bytes": 30_000_000, "seconds": 0.3} for other in others],
        "problems": {},
    }  # fmt: skip


def found(
    broken: dict[str, Callable[[dict[str, Any]], Any]], need: Need | None = None, **seen: Any
) -> list[Finding]:
    """What isn't in order where these hosts' facts are changed so."""
    told = []
    for host in HOSTS:
        its = facts(host)
        if host in broken:
            broken[host](its)
        told.append(its)
    all_of_it = judged(
        Seen(len(HOSTS), facts=told, **seen), need or Need(processes=4, use_gpu=True, heap=GIB)
    )
    return [finding for finding in all_of_it if finding.level != "ok"]


def set_to(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(its: dict[str, Any]) -> None:
        place: Any = its
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


def test_a_cluster_in_order_has_no_finding_that_is_not_ok_and_each_check_says_that_it_was_made() -> None:
    assert found({}) == []
    told = judged(Seen(len(HOSTS), facts=[facts(host) for host in HOSTS]), Need(processes=4, use_gpu=True))
    checks = {finding.check for finding in told}
    assert {
        "names", "driver", "ports", "MTU", "time", "Python", "torch", "torch version", "CUDA version", "NCCL", "glibc",
        "package versions", "GPUs", "memory", "/dev/shm", "disk", "descriptors", "kernel", "bandwidth", "Spark stage",
    } <= checks  # fmt: skip


# What is broken on host c: the change, and the level, the check and a part of what it means.
CASES: list[tuple[str, Callable[[dict[str, Any]], None], str, str, str]] = [
    ("name elsewhere", set_to("names", "not_own", to=["10.9.9.9"]), "error", "names", "10.9.9.9"),
    ("no own name", set_to("names", "own", to=[]), "warning", "names", "has no address"),
    ("driver's name", set_to("names", "to_driver", to=[]), "error", "names", "drv has no address"),
    ("driver's port", set_to("driver_link", to={"problem": "timeout", "text": "timed out"}), "error", "driver",
     "dropped"),
    ("driver elsewhere", set_to("driver_link", to={"problem": "stranger", "text": ""}), "error", "driver", "elsewhere"),
    ("no torch", set_to("torch", to={"error": "ModuleNotFoundError: No module named 'torch'"}), "error",
     "torch", "No module"),
    ("torch is slow", set_to("torch", to={"error": "no answer within 9 s", "late": True}), "warning", "torch", "late"),
    ("other torch", set_to("torch", "version", to="2.8.0"), "error", "torch version",
     "2.8.0 (its package says 2.9.0) here, 2.9.0+cu128 on a, b and d"),
    ("CPU torch", set_to("torch", "version", to="2.9.0+cpu"), "warning", "torch version", "2.9.0+cpu here"),
    ("torch's package", set_to("packages", "torch", to="2.7.1"), "error", "torch version", "its package says 2.7.1"),
    ("other NCCL", set_to("torch", "nccl", to="2.20.5"), "error", "NCCL", "2.20.5 here"),
    ("other CUDA", set_to("torch", "cuda", to="11.8"), "error", "CUDA version", "11.8 here"),
    ("other Python", set_to("python", "version", to="3.10.1"), "error", "Python", "3.10.1 here"),
    ("other patch", set_to("python", "version", to="3.11.9"), "warning", "Python", "3.11.9 here"),
    ("other glibc", set_to("python", "glibc", to="2.17"), "warning", "glibc", "2.17 here"),
    ("other jar", set_to("jars", to=["phalanx-spark_2.13-9.jar"]), "error", "jar", "phalanx-spark_2.13-9.jar here"),
    ("other numpy", set_to("packages", "numpy", to="1.26"), "warning", "package versions", "numpy 1.26 (else 2.1)"),
    ("other phalanx", set_to("packages", "phalanx", to="2"), "error", "package versions", "phalanx 2 (else 1)"),
    ("no phalanx", set_to("guard", to={"path": ""}), "error", "Phalanx", "can't be imported"),
    ("no guard", set_to("guard", "runs", to=False), "error", "Phalanx", "can't be executed"),
    ("no GPU", set_to("gpus", to={"devices": [], "gpus": [], "visible": None}), "error", "GPUs", "no /dev/nvidia"),
    ("GPU unseen", set_to("torch", "devices", to=0), "error", "CUDA", "sees none"),
    ("GPU not given", set_to("task_gpus", to=[]), "error", "GPUs", "gave the task here no GPU"),
    ("GPU in use", set_to("gpus", "gpus", to=[{**GPU, "memory.used": "70000"}]), "warning", "GPUs", "70000 of 80000"),
    ("other GPU", set_to("gpus", "gpus", to=[{**GPU, "name": "T4"}]), "warning", "GPU models", "T4"),
    ("small container", set_to("memory", "limit", to=GIB + GIB // 4), "error", "memory", "256 MiB is the room"),
    ("little memory", set_to("memory", "available", to=GIB), "warning", "memory", "1.0 GiB"),
    ("tiny shm", set_to("shm", "free", to=1 << 20), "error", "/dev/shm", "1 MiB free"),
    ("Docker's shm", set_to("shm", "free", to=64 << 20), "warning", "/dev/shm", "64 MiB free"),
    ("no shm", set_to("shm", to={"folder": "/dev/shm", "problem": "No such file"}), "error",
     "/dev/shm", "No such file"),
    ("full disk", set_to("disks", 0, "free", to=0), "error", "disk", "/tmp is full: 0 B left"),
    ("disk refuses", set_to("disks", 0, to={"folder": "/d", "problem": "No space left", "errno": errno.ENOSPC}),
     "error", "disk", "/d is full"),
    ("no inodes", lambda its: its["disks"][0].update(files=9999, files_free=3), "error", "disk", "room for 3 files"),
    ("read-only disk", set_to("disks", 0, "problem", to="Read-only file system"), "error", "disk",
     "can't be written to"),
    ("low disk", set_to("disks", 0, "free", to=GIB), "warning", "disk", "1.0 GiB left"),
    ("noexec", set_to("disks", 0, "runs", to=False), "warning", "noexec", "/tmp"),
    ("descriptors", set_to("limits", "descriptors", to=200), "error", "descriptors", "200 files"),
    ("few descriptors", set_to("limits", "descriptors", to=512), "warning", "descriptors", "512 files"),
    ("pids", set_to("limits", "pids", to=64), "warning", "processes", "pids.max allows 64"),
    ("address space", set_to("limits", "address_space", to=8 * GIB), "error", "address space", "8.0 GiB"),
    ("seccomp", set_to("kernel", "missing", to={"pidfd_open": "Operation not permitted"}), "error", "kernel",
     "pidfd_open (Operation not permitted)"),
    ("quota", set_to("cpu", "quota", to=0.1), "warning", "processor", "0.1 of a core"),
    ("slow core", set_to("cpu", "passes", to=200.0), "warning", "processors", "10 times slower"),
    ("clock", set_to("driver_link", to={"ahead": 31.0, "error": 0.01}), "warning", "time", "31.0 s behind"),
    ("clock far off", set_to("driver_link", to={"ahead": -900.0, "error": 0.01}), "error", "time", "900.0 s ahead"),
    ("MTU", set_to("interface", "mtu", to=1500), "warning", "MTU", "1500"),
    ("loopback", set_to("interface", "address", to="127.0.0.1"), "error", "interface", "127.0.0.1"),
    ("slow sender", set_to("speeds", to=[{"to": other, "bytes": 3_000_000, "seconds": 0.3} for other in "abd"]),
     "warning", "bandwidth", "10 times slower"),
    ("stalled", set_to("speeds", 0, to={"to": "a", "problem": "timeout", "text": "no answer"}), "error", "bandwidth",
     "stands still"),
    ("a probe that raised", set_to("problems", to={"gpus": "OSError: x"}), "warning", "GPUs", "could not look"),
    ("store's port", set_to("store_problem", to={"port": 7000, "text": "Address already in use"}), "error",
     "store port", "16 ports from 7000 on"),
    ("no notice command", lambda its: its["notice"].update(code=127, said="sh: 1: notice.sh: not found"), "error",
     "notice command", "there is no such program: sh: 1: notice.sh: not found"),
    ("no notice", lambda its: its["notice"].update(code=0, said="no JSON"), "warning", "notice command",
     "no notice: no JSON"),
    ("a notice", lambda its: its["notice"].update(code=0, notice={"seconds": 90, "reason": "spot"}), "warning",
     "notices", "is to go in 90 s: spot"),
    ("said nothing", lambda its: its.pop("torch"), "error", "answer", "did not report"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "level", "check", "part"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_is_broken_on_a_host_is_named_with_that_host_alone(
    change: Callable[[dict[str, Any]], None], level: str, check: str, part: str
) -> None:
    answer = found({"c": change})
    assert [(one.level, one.host, one.check) for one in answer] == [(level, "c", check)], answer
    assert part in answer[0].means
    assert answer[0].do or check in ("answer", "GPU models") or "could not look" in answer[0].means


@pytest.mark.parametrize(("change", "level"), [case[1:3] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_broken_on_every_host_is_told_without_a_host_in_order(
    change: Callable[[dict[str, Any]], None], level: str
) -> None:
    answer = found(dict.fromkeys(HOSTS, change))
    # Where hosts are compared and all are alike there is nothing to tell.
    assert all(one.level == level for one in answer), answer


def test_torch_that_does_not_load_under_a_limit_is_told_with_the_limit_and_whose_it_is() -> None:
    def limited(of_spark: str | None) -> Callable[[dict[str, Any]], None]:
        def change(its: dict[str, Any]) -> None:
            its["limits"].update(address_space=GIB, address_space_of_spark=of_spark)
            its["torch"] = {"error": "ImportError: libtorch_cpu.so: failed to map segment from shared object"}

        return change

    answer = found({"c": limited("1024")}, Need(processes=4, use_gpu=False))
    assert [(one.level, one.check) for one in answer] == [("error", "torch"), ("error", "address space")]
    for one in answer:
        assert "1.0 GiB at most: RLIMIT_AS, which spark.executor.pyspark.memory sets" in one.means
        assert one.do == "Leave that setting out, and set spark.executor.memoryOverhead instead."
    for another in (None, "-1", "2048"):
        answer = found({"c": limited(another)}, Need(processes=4, use_gpu=False))
        assert [(one.level, one.check) for one in answer] == [("error", "torch"), ("error", "address space")]
        assert all("spark.executor.pyspark.memory" not in one.means + one.do for one in answer)
    [answer] = found({"c": limited("1024")}, Need(processes=4, use_gpu=True, jvm=True))
    assert (answer.level, answer.check) == ("warning", "torch")
    assert "Ranks of the jvm stage are not limited by it" in answer.means


def test_hosts_without_gpus_are_all_named_where_the_run_asks_for_some() -> None:
    none = set_to("gpus", to={"devices": [], "gpus": [], "visible": None})
    answer = found(dict.fromkeys(HOSTS, none))
    assert [(one.level, one.host, one.check) for one in answer] == [("error", host, "GPUs") for host in HOSTS]


def test_with_the_jar_a_host_needs_no_phalanx_and_no_pyarrow() -> None:
    def bare(its: dict[str, Any]) -> None:
        its["guard"] = {"path": ""}
        del its["packages"]["pyarrow"]

    in_python = {(one.level, one.check) for one in found(dict.fromkeys(HOSTS, bare))}
    assert in_python == {("error", "Phalanx"), ("warning", "packages")}
    by_connect = found(dict.fromkeys(HOSTS, bare), Need(processes=4, use_gpu=True, connect=True))
    assert {(one.level, one.check) for one in by_connect} == {("error", "Phalanx"), ("error", "packages")}
    assert found(dict.fromkeys(HOSTS, bare), Need(processes=4, use_gpu=True, jvm=True)) == []


def test_a_port_of_the_drivers_that_is_closed_is_an_error_unless_there_is_another_way() -> None:
    closed = set_to("driver_link", to={"problem": "timeout", "text": "timed out"})
    answer = found({"c": closed}, Need(processes=4, use_gpu=True, jvm=True, other_way=True))
    assert [(one.level, one.host, one.check) for one in answer] == [("warning", "c", "driver")]
    assert "through Spark instead" in answer[0].means
    answer = found({"c": closed}, Need(processes=4, use_gpu=True, jvm=True))
    assert [(one.level, one.host, one.check) for one in answer] == [("error", "c", "driver")]
    assert "has no other route, and fails" in answer[0].means
    assert "spark.plugins" in answer[0].do


def test_where_two_versions_are_equally_frequent_all_hosts_are_named_with_theirs() -> None:
    other = set_to("torch", "version", to="2.8.0")
    answer = found({"c": other, "d": other})
    assert [(one.host, one.means.split(" ")[0]) for one in answer if one.check == "torch version"] == [
        ("a", "2.9.0+cu128"), ("b", "2.9.0+cu128"), ("c", "2.8.0"), ("d", "2.8.0"),
    ]  # fmt: skip


def test_of_connections_that_fail_the_host_is_named_that_they_have_in_common() -> None:
    def to_b(its: dict[str, Any]) -> None:
        for link in its["links"]:
            if link["to"] == "b":
                link.update(problem="timeout", text="timed out")

    answer = found({"a": to_b, "c": to_b, "d": to_b})
    assert [(one.level, one.host, one.check) for one in answer] == [("error", "b", "ports")]
    assert "from a, c and d: no answer" in answer[0].means
    assert "10.0.0.2 port 4000" in answer[0].means


def test_a_host_that_has_no_way_to_a_single_other_one_is_named_itself() -> None:
    answer = found({"d": lambda its: its["links"][0].update(problem="unreachable", text="No route to host")})
    assert [(one.host, one.check) for one in answer] == [("d", "ports")]
    assert "to a: not reachable (No route to host)" in answer[0].means


def test_a_host_on_which_the_name_of_another_one_leads_elsewhere_is_named() -> None:
    for wrong in ("10.7.7.7", "127.0.0.1"):
        leads = {"name_leads_to": [wrong], "addresses": ["127.0.0.1", "10.0.0.2"]}
        answer = found({"d": lambda its, leads=leads: its["links"][1].update(leads)})
        assert [(one.host, one.check) for one in answer] == [("d", "names of hosts")]
        assert f"b resolves here to {wrong}" in answer[0].means


def test_a_host_that_is_sent_to_slowly_is_named_and_not_those_that_send() -> None:
    def slowly_to_b(its: dict[str, Any]) -> None:
        for speed in its["speeds"]:
            if speed["to"] == "b":
                speed["bytes"] = 1_000_000

    answer = found(dict.fromkeys("acd", slowly_to_b))
    assert [(one.host, one.check) for one in answer] == [("b", "bandwidth")]
    assert "This host receives" in answer[0].means


def test_hosts_that_did_not_answer_in_time_are_named() -> None:
    # DOCTOR-4
    told = [facts(host) for host in HOSTS[:3]]
    del told[2]["torch"]
    answer = [
        one
        for one in judged(Seen(4, facts=told, late=True, seconds=30), Need(4, True))
        if one.level == "error"
    ]
    assert [(one.host, one.check) for one in answer] == [("c", "answer"), ("d", "answer")]
    alone = [{**facts("a"), "everyone": [[0, "a"]]}]
    answer = judged(Seen(2, facts=alone, late=True, seconds=30), Need(2, True), ["a", "z"])
    assert [(one.host, one.check) for one in answer if one.level == "error"] == [("z", "answer")]


def test_a_stage_that_failed_names_the_host_and_hosts_without_a_task_are_said() -> None:
    answer = found({}, problem="No space left on device", problem_hosts=["c"])
    assert [(one.level, one.host, one.check) for one in answer] == [("error", "c", "Spark stage")]
    told = judged(Seen(4, started=False, late=True, waited=9), Need(4, True))
    assert [(one.level, one.check) for one in told] == [("error", "answer")]
    assert "None of 4 tasks" in told[0].means
    told = judged(Seen(4, facts=[facts("a")], problem="no python", problem_hosts=["c"]), Need(4, True))
    assert "3 of 4 tasks did not report" in next(one.means for one in told if one.check == "hosts")
    told = judged(Seen(4, facts=[facts(host) for host in HOSTS]), Need(4, True), [*HOSTS, "z"])
    assert [(one.level, one.check) for one in told if one.level != "ok"] == [("warning", "hosts")]


def test_a_wrong_sum_is_an_error_and_a_right_one_tells_how_long_it_took() -> None:
    ranks = [{"host": "a", "seconds": 0.01, "right": True, "encrypted": False} for _ in range(2)]
    good = judged_run(ranks, use_gpu=False)
    assert good.level == "ok"
    assert "2 ranks reduced 4 MiB over phalanx in 10 ms" in good.means
    wrong = judged_run([ranks[0], {**ranks[1], "right": False}], use_gpu=False)
    assert (wrong.level, "ranks 1" in wrong.means) == ("error", True)


def test_a_run_that_is_slow_to_start_is_a_warning_and_one_that_hangs_an_error() -> None:
    slow, hangs = judged_time_out(1, 2, 20, "starting ranks"), judged_time_out(2, 2, 20, "training")
    assert (slow.level, "1 of 2 ranks had imported torch" in slow.means) == ("warning", True)
    assert (hangs.level, "All 2 ranks were ready" in hangs.means) == ("error", True)


def test_of_two_hosts_with_a_slow_link_the_sender_is_named() -> None:
    two = [facts(host) for host in HOSTS[:2]]
    for its in two:
        its["everyone"] = its["everyone"][:2]
        its["links"] = its["links"][:1]
        its["speeds"] = its["speeds"][:1]
    two[1]["speeds"][0]["bytes"] = 1_000_000
    told = [one for one in judged(Seen(2, facts=two), Need(2, True)) if one.level != "ok"]
    assert [(one.host, one.check) for one in told] == [("b", "bandwidth")]


def test_the_report_has_the_worst_first_as_text_json_and_a_table_without_markup_of_hosts() -> None:
    findings = [
        Finding("ok", "", "time", "All is well."),
        Finding("warning", "b", "MTU", "It differs."),
        Finding(
            "error", "<b>a</b>", "torch", "import torch fails: <script>alert(1)</script>", "Install it & go."
        ),
    ]
    made = Report(copy.copy(findings), hosts=["<b>a</b>", "b"], links=[("<b>a</b>", "b", 2e6)], seconds=3.2)
    assert [finding.level for finding in made.findings] == ["error", "warning", "ok"]
    assert not made.ok
    assert Report(findings[:2]).ok
    text = str(made)
    assert text.startswith("phalanx doctor: 1 error and 1 warning; 2 hosts, 1 things in order, 3 s\n")
    assert "-> Install it & go." in text
    table = made._repr_html_()
    assert "<script>" not in table
    assert "<b>a</b>" not in table
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in table
    read = json.loads(made.to_json())
    assert read["findings"][0]["host"] == "<b>a</b>"
    assert read["links"] == [{"from": "<b>a</b>", "to": "b", "bytes_per_second": 2000000}]
    assert read["ok"] is False


def test_overhead_that_is_too_small_for_the_ranks_is_said() -> None:
    small = found({}, Need(processes=4, use_gpu=True, overhead=1 << 29, executor_ranks=2))
    assert [(one.level, one.check) for one in small] == [("warning", "overhead")]
    assert "512 MiB beside the heap, for 2 ranks" in small[0].means
    assert found({}, Need(processes=4, use_gpu=True, overhead=3 * GIB, executor_ranks=2)) == []


def test_executors_that_ended_are_named_by_their_host_and_those_of_just_now_are_errors() -> None:
    known = [
        Executor(str(at), host, active, 0, reason)
        for at, (host, active, reason) in enumerate(
            [("c", False, "code 1"), ("d", False, "lost"), ("c", False, "No space left"), ("a", True, "")]
        )
    ]
    ended = list(lost_executors(known, before={"0", "1"}))
    assert [(one.level, one.host, one.check) for one in ended] == [
        ("error", "c", "executors"),
        ("warning", "d", "executors"),
    ]
    assert "2 executors ended here" in ended[0].means
    assert "just now: No space left" in ended[0].means


class Conf(dict[str, str]):
    @property
    def getAll(self) -> dict[str, str]:
        return self


class NoCluster:
    """A session of which there are only settings: whatever else is asked of it raises."""

    def __init__(self, **conf: str) -> None:
        self.conf = Conf({key.replace("__", "."): value for key, value in conf.items()})


def test_what_prevents_a_run_is_a_finding_and_no_exception() -> None:
    # DOCTOR-1, DOCTOR-3
    spark: Any = NoCluster(
        spark__master="yarn", spark__dynamicAllocation__enabled="true", spark__phalanx__grace="soon"
    )
    report = doctor(spark, 4, use_gpu=True, timeout=5)
    assert not report.ok
    errors = {finding.check: finding.means for finding in report.findings if finding.level == "error"}
    assert "spark.phalanx.grace" in errors["settings"]
    assert "spark.task.resource.gpu.amount" in errors["GPUs"]
    assert "driver" in errors
    for gang, level in (("barrier", "error"), ("auto", "ok")):
        cluster: Any = NoCluster(
            spark__master="yarn", spark__dynamicAllocation__enabled="true", spark__phalanx__gang=gang
        )
        again = doctor(cluster, 4, False, timeout=5)
        [found] = [finding for finding in again.findings if finding.check == "gang"]
        assert found.level == level
        if gang == "auto":
            assert "a Spark job each: dynamic allocation is on, and spark.phalanx.gang is auto" in found.means
            [slots] = [finding.means for finding in again.findings if finding.check == "slots"]
            assert "a run needs 4, and Spark starts as many executors as the cluster gives" in slots
    unknown = doctor(NoCluster(spark__master="local[2]", spark__phalanx__graec="1s"), 2, False, timeout=5)  # type: ignore[arg-type]
    said = [
        (finding.level, finding.check)
        for finding in unknown.findings
        if "spark.phalanx.graec" in finding.means
    ]
    assert said == [("warning", "settings")]
    few = doctor(NoCluster(spark__master="local[2]"), 3, False, timeout=5)  # type: ignore[arg-type]
    slots = [finding for finding in few.findings if finding.check == "slots"]
    assert [(finding.level, "never more than 2" in finding.means) for finding in slots] == [("error", True)]


def test_a_limit_on_silent_workers_is_a_warning() -> None:
    limit = {
        "spark__python__worker__killOnIdleTimeout": "true",
        "spark__python__worker__idleTimeoutSeconds": "60",
    }
    report = doctor(NoCluster(spark__master="local[2]", **limit), 2, False, timeout=5)  # type: ignore[arg-type]
    [found] = [one for one in report.findings if one.check == "idle workers"]
    assert (found.level, "longer than spark.python.worker.idleTimeoutSeconds=60" in found.means) == (
        "warning",
        True,
    )


@pytest.mark.parametrize(
    ("processes", "timeout", "kind"), [(0, 60, ValueError), ("two", 60, TypeError), (2, 0, ValueError)]
)
def test_what_is_no_number_raises(processes: Any, timeout: float, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        doctor(NoCluster(), processes, timeout=timeout)  # type: ignore[arg-type]


def test_every_check_is_in_the_document() -> None:
    rows = [line for line in (ROOT / "docs" / "doctor.md").read_text().splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    made = judged(Seen(len(HOSTS), facts=[facts(host) for host in HOSTS]), Need(4, True, overhead=GIB))
    assert {finding.check for finding in made} <= told
    assert {case[3] for case in CASES} <= told
