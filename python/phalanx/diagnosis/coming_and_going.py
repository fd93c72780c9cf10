"""What the doctor says of hosts and executors that come and go: which gang a run would have and why, what it could get,
who is announced to go, and which hosts are left alone. Pure functions, but for what Spark and this process are asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .. import _native
from .executors import Executor
from .finding import Facts, Finding, Need

_MOST = "spark.dynamicAllocation.maxExecutors"
# The shell's: it is no program, or is nowhere.
_NOT_RUN = {126: "it may not be run", 127: "there is no such program"}


def gang_finding(gang: str, wish: str, *, dynamic: bool) -> Finding:
    """What a run's tasks are, and why."""
    tasks = "start together" if gang == "barrier" else "are a Spark job each"
    if wish != "auto":
        why = f"spark.phalanx.gang is {wish}"
    else:
        why = f"dynamic allocation is {'on' if dynamic else 'off'}, and spark.phalanx.gang is auto"
    return Finding("ok", "", "gang", f"A run's tasks {tasks}: {why}.")


def seats_finding(tasks: int, slots: int | None, most: str | None) -> Finding:
    """What a gang of tasks can get where Spark starts executors, `most` at most; `slots` are those that are there."""
    there = (
        "Spark doesn't tell how many task slots there are"
        if slots is None
        else f"There are {slots} task slots"
    )
    limit = f"{most} executors at most ({_MOST})" if most else "as many executors as the cluster gives"
    return Finding("ok", "", "slots", f"{there}; a run needs {tasks}, and Spark starts {limit}.")


def leaving_findings(spark: Any, executors: list[Executor]) -> Iterator[Finding]:
    """The hosts whose executors Spark decommissions now."""
    hosts = set()
    with contextlib.suppress(Exception):  # a client of Spark Connect has no scheduler to ask
        scheduler = spark.sparkContext._jsc.sc().taskScheduler()
        for one in executors:
            if one.active and scheduler.getExecutorDecommissionState(one.number).isDefined():
                hosts.add(one.host)
    for host in sorted(hosts):
        yield Finding(
            "warning",
            host,
            "notices",
            "Spark decommissions an executor here: it starts no more tasks on it.",
            "Wait until another executor is there.",
        )


def cooling_findings() -> Iterator[Finding]:
    """The hosts that runs of this process leave alone."""
    for host, failures, seconds, why in _native.hosts_in_cooldown():
        yield Finding(
            "warning",
            host,
            "cooldown",
            f"Runs have failed here {failures} times, the last time: {why}. In a gang of tasks new tasks of this host "
            f"wait for {seconds:.0f} s more.",
            "Look at the host; spark.phalanx.host.cooldown says how long it is left alone.",
        )


def notice_command(facts: Facts, need: Need) -> Iterator[Finding]:
    """What `spark.phalanx.notice.command` does on a host."""
    found, host = facts["notice"], facts["host"]
    if found["code"] in _NOT_RUN:
        yield Finding(
            "error",
            host,
            "notice command",
            f"spark.phalanx.notice.command can't be run here, since {_NOT_RUN[found['code']]}: {found['said']}. "
            "No run would hear that this host is to go.",
            "Put the program on every host, or correct the setting.",
        )
    elif found["notice"] is not None:
        seconds, reason = found["notice"].get("seconds"), found["notice"].get("reason", "it doesn't say why")
        when = f" in {seconds} s" if isinstance(seconds, (int, float)) else ""
        yield Finding(
            "warning",
            host,
            "notices",
            f"The notice command says that this host is to go{when}: {reason}.",
            "Wait until it has gone.",
        )
    elif found["said"]:
        yield Finding(
            "warning",
            host,
            "notice command",
            f"spark.phalanx.notice.command prints what is no notice: {found['said']}",
            "A notice is a line of JSON; docs/preemption.md says which.",
        )


def notice_command_in_order(looked: list[Facts], need: Need) -> str:
    """What is said where it is in order everywhere."""
    return "The notice command runs, and says that no host is to go."
