"""The doctor's probes on this host, the connections between tasks, and what a task leaves with the driver."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from phalanx.diagnosis import probe
from phalanx.diagnosis.links import Listener, measure, meet, report
from phalanx.diagnosis.task import Orders, examined, first_of_each_host, measured_peers_of, peers_of

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 100])
def test_a_host_connects_to_few_others_and_each_is_connected_to(count: int) -> None:
    # DOCTOR-12
    for peers in (peers_of, measured_peers_of):
        to: list[int] = []
        for place in range(count):
            mine = peers(place, count)
            assert len(set(mine)) == len(mine) <= 16
            assert place not in mine
            to += mine
        assert count == 1 or set(to) == set(range(count))


def test_the_first_task_of_each_host_looks_around() -> None:
    everyone = [{"partition": at, "host": host} for at, host in enumerate("babca")]
    assert [(one["partition"], one["host"]) for one in first_of_each_host(everyone)] == [
        (0, "b"),
        (1, "a"),
        (3, "c"),
    ]


def test_a_probe_that_raises_or_hangs_is_a_problem_and_the_others_go_on() -> None:
    # DOCTOR-7
    for_good = threading.Event()
    told, problems = probe.measured(
        {"good": lambda: 7, "bad": lambda: 1 / 0, "hangs": for_good.wait}, seconds=1
    )
    for_good.set()
    assert told == {"good": 7}
    assert problems == {"bad": "ZeroDivisionError: division by zero", "hangs": "no answer within 1 s"}


def test_this_host_is_in_order_and_nothing_is_left_on_its_disk(tmp_path: Any) -> None:
    # DOCTOR-8
    told, problems = probe.measured(probe.machine([str(tmp_path)], "127.0.0.1", 40), 40)
    assert problems == {}
    assert os.listdir(tmp_path) == []
    assert told["disks"][0]["runs"] is True
    assert told["kernel"]["missing"] == {}
    assert told["guard"]["runs"] is True
    assert told["names"]["to_driver"] == ["127.0.0.1"]
    assert json.loads(json.dumps(told)) == told
    assert probe.interface("127.0.0.1")["name"] == "lo"
    assert probe.interface("127.0.0.1")["mtu"] > 0


def test_what_is_asked_of_the_kernel_leaves_no_child_to_process_1() -> None:
    waits = "\ntry:\n    os.wait()\nexcept ChildProcessError:\n    print('NOBODY')\n"
    done = subprocess.run([sys.executable, "-c", probe._KERNEL + waits], capture_output=True, text=True)
    assert done.stdout == "FOUND {}\nNOBODY\n", done


def test_an_import_of_torch_that_fails_is_told_in_its_own_words(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    assert probe.torch(30) == {"error": "ImportError: libcudart.so.13: cannot open shared object file"}


def test_who_does_not_know_the_secret_is_told_nothing_and_can_report_nothing() -> None:
    # DOCTOR-5
    taken: list[dict[str, Any]] = []
    with Listener("127.0.0.1", b"right", 5, take=taken.append) as listener:
        assert meet("127.0.0.1", listener.port, b"wrong", 5)["problem"] == "stranger"
        assert report("127.0.0.1", listener.port, b"wrong", 5, {"partition": 1})["problem"] == "stranger"
        assert taken == []
        assert meet("127.0.0.1", listener.port, b"right", 5)["who"] == 5
        assert report("127.0.0.1", listener.port, b"right", 5, {"partition": 1})["who"] == 5
        assert taken == [{"partition": 1}]
        speed = measure("127.0.0.1", listener.port, b"right", 10)
        assert speed["bytes"] > 0
        assert abs(meet("127.0.0.1", listener.port, b"right", 5)["ahead"]) < 5
    assert meet("127.0.0.1", listener.port, b"right", 5)["problem"] == "refused"


def test_a_service_that_is_another_one_and_one_that_says_nothing_are_told_apart() -> None:
    # DOCTOR-6
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert meet("127.0.0.1", port, b"secret", 0.5)["problem"] == "timeout"

        def greet() -> None:
            with silent.accept()[0], silent.accept()[0] as connection:
                connection.sendall(b"220 mail.example ESMTP\r\n")
                with contextlib.suppress(OSError):  # who met a stranger hangs up
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(100)

        greeting = threading.Thread(target=greet)
        greeting.start()
        assert meet("127.0.0.1", port, b"secret", 5)["problem"] == "stranger"
        greeting.join(10)


def test_what_a_task_has_found_is_with_the_driver_though_the_stage_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # DOCTOR-11
    class Context:
        def partitionId(self) -> int:
            return 1

        def getTaskInfos(self) -> list[Any]:
            return [SimpleNamespace(address="127.0.0.1:40001"), SimpleNamespace(address="127.0.0.1:40002")]

        def resources(self) -> dict[str, Any]:
            return {}

        def allGather(self, _: str) -> list[str]:
            raise RuntimeError("the stage failed")

    monkeypatch.setattr("pyspark.BarrierTaskContext.get", Context)
    taken: list[dict[str, Any]] = []
    with Listener("127.0.0.1", b"secret", -1, take=taken.append) as listener:
        orders = Orders(b"secret", "127.0.0.1", listener.port, 0, seconds=30, use_gpu=False, barrier=True)
        with pytest.raises(RuntimeError, match="the stage failed"):
            examined(orders)
    assert [(one["partition"], one["host"], one["address"]) for one in taken] == [
        (1, "127.0.0.1", "127.0.0.1")
    ]
