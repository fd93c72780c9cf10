"""What the doctor says of hosts that come and go: the notice command, run for real, and hosts that are left alone."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
from phalanx.diagnosis.coming_and_going import cooling_findings, gang_finding, seats_finding
from phalanx.diagnosis.notice_probe import run_notice_command

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("command", "code", "said", "notice"),
    [
        ("exit 1", 1, "", None),
        ("/nowhere/notice.sh", 127, "not found", None),
        ("/etc/passwd", 126, "Permission denied", None),
        ("""echo '{"seconds": 90}'; exit 0""", 0, "", {"seconds": 90}),
        ("echo hello >&2", 0, "hello", None),
        ("""echo '{"reason": "spot"}'; sleep 60""", None, "", {"reason": "spot"}),
    ],
)
def test_the_notice_command_is_run_once_and_is_gone_then(
    command: str, code: int | None, said: str, notice: Any
) -> None:
    found = run_notice_command(command)
    assert (found["code"], found["notice"]) == (code, notice), found
    assert said in found["said"]
    assert bool(said) == bool(found["said"]), found
    left = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert ["/bin/sh", "-c", command] not in left, "DOCTOR-8"


def test_hosts_that_runs_leave_alone_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    cooling = [("bad", 2, 840.4, "rank 1 (bad) is lost with its task")]
    monkeypatch.setattr("phalanx._native.hosts_in_cooldown", lambda: cooling)
    [found] = cooling_findings()
    assert (found.level, found.host, found.check) == ("warning", "bad", "cooldown")
    assert "failed here 2 times, the last time: rank 1 (bad) is lost with its task" in found.means
    assert "wait for 840 s more" in found.means


@pytest.mark.parametrize(
    ("gang", "wish", "dynamic", "said"),
    [
        (
            "tasks",
            "auto",
            True,
            "are a Spark job each: dynamic allocation is on, and spark.phalanx.gang is auto.",
        ),
        (
            "barrier",
            "auto",
            False,
            "start together: dynamic allocation is off, and spark.phalanx.gang is auto.",
        ),
        ("tasks", "tasks", False, "are a Spark job each: spark.phalanx.gang is tasks."),
    ],
)
def test_the_gang_is_said_with_its_reason(gang: str, wish: str, dynamic: bool, said: str) -> None:
    assert gang_finding(gang, wish, dynamic=dynamic).means == f"A run's tasks {said}"


def test_what_a_gang_can_get_is_said() -> None:
    limited = seats_finding(8, 2, "6")
    assert limited.means == (
        "There are 2 task slots; a run needs 8, and Spark starts 6 executors at most "
        "(spark.dynamicAllocation.maxExecutors)."
    )
    assert "as many executors as the cluster gives" in seats_finding(8, None, None).means
